"""Evaluate an agent on every task of a fixed set of tasks, each a fixed number of times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from gagpo.agents.agent import Agent
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.base.progress import track
from gagpo.data import Decode, Episode, write_episodes
from gagpo.envs import TextEnv
from gagpo.envs.lookup import with_split
from gagpo.envs.pool import Pool
from gagpo.envs.pool.opening import open_pool
from gagpo.envs.tasks import TaskSet
from gagpo.envs.tools import tools_of
from gagpo.eval.conditions import Conditions
from gagpo.eval.journal import Journal
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.runs.reading import in_one_line

BASE_SEED = 20_260_101  # the seeds of the episodes depend on the task set, not on the run that is measured

Rollout = Callable[..., tuple[list[Episode], Clock]]
"""A function with the signature of :func:`gagpo.agents.rollout.rollout`."""


def choose_tasks(tasks: TaskSet, count: int | None = None) -> TaskSet:
    """The whole split, or ``count`` tasks evenly spaced over its sorted ids; ``EmptySplit`` if empty."""
    tasks.require()
    if count is None or count >= len(tasks):
        return tasks
    all_tasks = list(tasks)
    return TaskSet(tasks.split, [all_tasks[i * len(all_tasks) // count] for i in range(count)])


@dataclass(frozen=True)
class EvaluatedAgent:
    """An agent and how its episodes are run.

    name: the model's name in the result.
    temperature: part of the result; None if no tokens are sampled.
    kwargs: arguments of its environments; part of the result.
    deterministic: it answers all episodes that are ready in one batch.
    concurrency: number of episodes at once.
    identity: tells its weights or its server from any other, as plain JSON values, for the key of a journal.
    session: a context around all episodes, called with the journal and the number of episodes.
    rollout: runs the episodes; training on several ranks passes one that distributes them.
    """

    agent: Agent
    name: str
    temperature: float | None
    kwargs: Mapping[str, object]
    deterministic: bool = True
    concurrency: int = 256
    identity: Mapping[str, object] = field(default_factory=dict)
    session: Callable[[Journal | None, int], AbstractContextManager[object]] = lambda journal, episodes: nullcontext()
    rollout: Rollout = rollout


def evaluate(
    evaluated: EvaluatedAgent,
    pool: Pool,
    tasks: TaskSet,
    environment: str,
    *,
    tries: int = 1,
    seed: int = 0,
    quiet: bool = False,
    journal: Journal | None = None,
) -> tuple[EvalResult, list[Episode]]:
    """Run every task of a task set; return the result and the episodes in the order of the tasks.

    The tasks and ``seed`` fix the seeds of the episodes, so every agent gets the same episodes.

    environment: id of the environment in ``pool``; part of the result.
    tries: episodes of each task.
    journal: its episodes are not run again; new ones are appended as they end.
    """
    tasks.require()
    agent = evaluated.agent
    conditions = dict(getattr(agent, "conditions", {}))
    decode: Decode | None = getattr(agent, "decode", None)  # of an agent that reads tokens
    with in_one_line():
        kwargs = dict(evaluated.kwargs)
        task_set = EvaluatedTaskSet(environment, tasks.split, tasks.hash, len(tasks), tries, kwargs, seed, conditions)
    jobs = group_jobs(tasks.ids, tries, BASE_SEED + seed, f"panel {tasks.split}")
    done = dict(journal.episodes) if journal else {}
    missing = [job for job in jobs if (job.task, job.sample) not in done]
    with track(f"evaluating on {tasks.split}", len(jobs), "episodes", quiet, len(jobs) - len(missing)) as meter:

        def on_finish(episode: Episode) -> None:
            # As each episode ends, so that an interruption loses only unfinished ones.
            if decode is not None:
                episode.note_sent(decode)
            if journal:
                journal.append(episode)
            meter.advance()

        new, _ = evaluated.rollout(
            agent,
            pool,
            missing,
            concurrency=evaluated.concurrency,
            deterministic=evaluated.deterministic,
            on_finish=on_finish,
        )
    done |= {(episode.task, episode.sample): episode for episode in new}
    episodes = [done[job.task, job.sample] for job in jobs]
    return EvalResult.from_episodes(episodes, task_set, evaluated.name, evaluated.temperature), episodes


def _default_split(env: TextEnv) -> str:
    """The split that is evaluated if none is named."""
    choose = getattr(env, "default_split", None)  # an environment of another base need not have it
    return str(choose()) if choose is not None else env.splits[-1]


def first_failure(episodes: Sequence[Episode]) -> str:
    """The error of the first failed episode; empty if none failed."""
    return next((str(episode.info.get("error", "")) for episode in episodes if episode.outcome == "failed"), "")


def require_finished_episode(result: EvalResult, episodes: Sequence[Episode], label: str) -> None:
    """Raise GagpoError if every episode failed in its environment. label: begins the message."""
    if result.failed == result.episodes:
        count = f"all {result.episodes} episodes" if result.episodes > 1 else "the only episode"
        raise GagpoError(f"{count} failed in the environment: {first_failure(episodes)}", where=label)


@dataclass(frozen=True)
class EvaluationOutcome:
    """A result with its episodes.

    episodes: in the order of the tasks.
    journal: the file that keeps the episodes, if any.
    stored: number of episodes that the journal had before, of which nothing was asked again.
    usage: requests, tokens and dollars at a server, including those before an interruption.
    """

    result: EvalResult
    episodes: list[Episode]
    journal: Path | None = None
    stored: int = 0
    usage: dict[str, float] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """The error of the first failed episode; empty if none failed."""
        return first_failure(self.episodes)

    @property
    def tokens_written(self) -> int:
        """Response tokens, of a model here or at a server; 0 for an agent without tokens."""
        if self.usage:
            return int(self.usage["completion"])
        return sum(len(turn.response_ids) for episode in self.episodes for turn in episode.turns)


@dataclass(frozen=True)
class PreparedEvaluation:
    """A request with its conditions, environment and tasks."""

    request: EvaluationRequest
    conditions: Conditions
    kwargs: dict[str, object]
    env: TextEnv
    tasks: TaskSet

    @classmethod
    def of(
        cls, request: EvaluationRequest, conditions: Conditions, user_kwargs: Collection[str] | None = None
    ) -> PreparedEvaluation:
        """GagpoError for an unknown environment or split, or a split without tasks.

        user_kwargs: names of the arguments that the user typed; see ``warn_of`` of :func:`make_env`.
        """
        kwargs = with_split(conditions.environment, conditions.kwargs, conditions.split)
        env = make_env(conditions.environment, kwargs, user_kwargs)
        split = conditions.split or _default_split(env)
        if "split" in kwargs and "split" not in conditions.kwargs:
            kwargs["split"] = split  # workers load only the split that is evaluated
        tasks = choose_tasks(tasks_of(env, split), conditions.tasks)
        return cls(request, conditions, kwargs, env, tasks)

    def run(self, evaluated: EvaluatedAgent) -> EvaluationOutcome:
        """Run the episodes that the journal does not have.

        Raises:
            GagpoError: every episode failed in its environment. The journal is deleted.
        """
        request = self.request
        environment = self.conditions.environment
        material = self.env.material(evaluated.kwargs)
        max_concurrency = getattr(self.env, "concurrency", None) or evaluated.concurrency
        concurrency = request.concurrency or min(evaluated.concurrency, max_concurrency)
        journal_key = self._journal_key(evaluated, material)
        with (
            Journal(request.journals, journal_key) if request.journals is not None else nullcontext() as journal,
            open_pool(environment, evaluated.kwargs, workers=request.workers) as pool,
            evaluated.session(journal, len(self.tasks) * request.episodes_per_task),
        ):
            stored = sum(sample < request.episodes_per_task for _, sample in journal.episodes) if journal else 0
            result, episodes = evaluate(
                replace(evaluated, kwargs=material, concurrency=concurrency),
                pool,
                self.tasks,
                environment,
                tries=request.episodes_per_task,
                seed=request.seed,
                quiet=request.quiet,
                journal=journal,
            )
        if request.episodes is not None:
            with durable.replacing(request.episodes) as temporary:
                write_episodes(temporary, episodes)
        outcome = EvaluationOutcome(result, episodes, journal.path if journal else None, stored)
        if result.failed == result.episodes and outcome.journal:
            outcome.journal.unlink()
        require_finished_episode(result, episodes, environment)
        return outcome

    def _journal_key(self, evaluated: EvaluatedAgent, material: Mapping[str, object]) -> dict[str, object]:
        """Everything that decides what an episode is; the number of episodes of a task does not."""
        tools = tools_of(self.env)
        return {
            "model": self.request.model,
            "seed": self.request.seed,
            **({"overrides": list(self.request.overrides)} if self.request.overrides else {}),
            **self.conditions.record(),
            **({"tools": [tool.spec for tool in tools]} if tools else {}),
            **evaluated.identity,
            "kwargs": material,
            "panel": self.tasks.hash,
            "instructions": getattr(self.env, "instructions", ""),
        }
