"""Play every task of a fixed panel a fixed number of times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from gagpo.agents.agent import Agent
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.base.progress import track
from gagpo.data.episodes import Decode, Episode, write_episodes
from gagpo.envs import TextEnv
from gagpo.envs.lookup import with_split
from gagpo.envs.pool import Pool
from gagpo.envs.pool.opening import open_pool
from gagpo.envs.tasks import TaskSet
from gagpo.envs.tools import tools_of
from gagpo.eval.journal import Journal
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult, Panel
from gagpo.runs.reading import in_one_line

PANEL_SEED = 20_260_101  # the seeds of the episodes depend on the panel, not on the run that is measured


def choose_panel(tasks: TaskSet, count: int | None = None) -> TaskSet:
    """The whole split, or ``count`` tasks evenly spaced over its sorted ids; ``EmptySplit`` if empty."""
    tasks.require()
    if count is None or count >= len(tasks):
        return tasks
    listed = list(tasks)
    return TaskSet(tasks.split, [listed[i * len(listed) // count] for i in range(count)])


def evaluate(
    agent: Agent,
    pool: Pool,
    tasks: TaskSet,
    *,
    environment: str,
    kwargs: Mapping[str, object],
    model: str,
    temperature: float | None,
    tries: int = 1,
    seed: int = 0,
    concurrency: int = 256,
    deterministic: bool = True,
    quiet: bool = False,
    journal: Journal | None = None,
    rollout: Callable[..., tuple[list[Episode], Clock]] = rollout,
) -> tuple[EvalResult, list[Episode]]:
    """Play every task with ``agent``; return the result and the episodes in the panel's order.

    The panel and ``seed`` fix the seeds, so every model plays the same episodes.

    environment, kwargs: of the environment in ``pool``; part of the result.
    model: name of the agent; part of the result.
    temperature: part of the result; None if no tokens are sampled.
    tries: episodes of each task.
    concurrency: episodes at once.
    deterministic: the agent answers all episodes that are ready in one batch.
    journal: its episodes are not played again; new ones are appended as they end.
    rollout: plays the jobs on the pool; training on several ranks passes one that distributes them.
    """
    tasks.require()
    conditions = dict(getattr(agent, "conditions", {}))
    decode: Decode | None = getattr(agent, "decode", None)  # of an agent that reads tokens
    with in_one_line():
        panel = Panel(environment, tasks.split, tasks.hash, len(tasks), tries, dict(kwargs), seed, conditions)
    jobs = group_jobs(tasks.ids, tries, PANEL_SEED + seed, f"panel {tasks.split}")
    played = dict(journal.episodes) if journal else {}
    missing = [job for job in jobs if (job.task, job.sample) not in played]
    with track(f"evaluating on {tasks.split}", len(jobs), "episodes", quiet, len(jobs) - len(missing)) as meter:

        def finished(episode: Episode) -> None:
            if decode is not None:
                episode.note_sent(decode)
            if journal:
                journal.append(episode)
            meter.advance()

        new, _ = rollout(agent, pool, missing, concurrency=concurrency, deterministic=deterministic, on_finish=finished)
    played |= {(episode.task, episode.sample): episode for episode in new}
    episodes = [played[job.task, job.sample] for job in jobs]
    return EvalResult.from_episodes(episodes, panel, model, temperature), episodes


def first_failure(episodes: Sequence[Episode]) -> str:
    """The error of the first failed episode; empty if none failed."""
    return next((str(one.info.get("error", "")) for one in episodes if one.outcome == "failed"), "")


def require_played(result: EvalResult, episodes: Sequence[Episode], what: str) -> None:
    """Raise GagpoError if every episode failed in its environment. what: begins the message."""
    if result.failed == result.episodes:
        count = f"all {result.episodes} episodes" if result.episodes > 1 else "the only episode"
        raise GagpoError(f"{what}: {count} failed in the environment: {first_failure(episodes)}")


@dataclass(frozen=True)
class Player:
    """An agent and how to play a panel with it.

    name: the model's name in the result.
    identity: tells it from any other player, as plain JSON values.
    temperature: part of the result; None if no tokens are sampled.
    kwargs: arguments of its environments.
    deterministic: it answers all episodes that are ready in one batch.
    concurrency: default number of episodes at once.
    session: a context around all episodes, called with the journal and the number of episodes.
    """

    agent: Agent
    name: str
    identity: Mapping[str, object]
    temperature: float | None
    kwargs: Mapping[str, object]
    deterministic: bool = True
    concurrency: int = 256
    session: Callable[[Journal | None, int], AbstractContextManager[None]] = lambda journal, episodes: nullcontext()


@dataclass(frozen=True)
class EvaluationOutcome:
    """A result with its episodes.

    episodes: in the order of the panel.
    journal: the file that keeps the episodes, if any.
    usage: requests, tokens and dollars at a server, including those before an interruption.
    """

    result: EvalResult
    episodes: list[Episode]
    journal: Path | None = None
    usage: dict[str, float] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """The error of the first failed episode; empty if none failed."""
        return first_failure(self.episodes)


@dataclass(frozen=True)
class ChosenPanel:
    """A completed request with its environment and tasks."""

    request: EvaluationRequest
    kwargs: dict[str, object]
    env: TextEnv
    tasks: TaskSet

    @classmethod
    def of(cls, request: EvaluationRequest, given: Collection[str] | None = None) -> ChosenPanel:
        """GagpoError for an unknown environment or split, or a split without tasks. given: as in :func:`make_env`."""
        environment = request.environment or ""
        kwargs = with_split(environment, request.kwargs or {}, request.split)
        env = make_env(environment, kwargs, given)
        tasks = choose_panel(tasks_of(env, request.split or env.splits[-1]), request.tasks)
        return cls(request, kwargs, env, tasks)

    def play(self, player: Player) -> EvaluationOutcome:
        """Play the panel; episodes in the journal are not played again.

        Raises:
            GagpoError: every episode failed in its environment. The journal is deleted.
        """
        request, material = self.request, self.env.material(player.kwargs)
        tools, most = tools_of(self.env), getattr(self.env, "concurrency", None)
        key = {
            **request.facts(),
            **({"tools": [tool.spec for tool in tools]} if tools else {}),
            **player.identity,
            "kwargs": material,
            "panel": self.tasks.hash,
            "instructions": getattr(self.env, "instructions", ""),
        }
        with (
            Journal(request.journals, key) if request.journals is not None else nullcontext() as journal,
            open_pool(request.environment or "", player.kwargs, workers=request.workers) as pool,
            player.session(journal, len(self.tasks) * request.episodes_per_task),
        ):
            result, episodes = evaluate(
                player.agent,
                pool,
                self.tasks,
                environment=request.environment or "",
                kwargs=material,
                model=player.name,
                temperature=player.temperature,
                tries=request.episodes_per_task,
                seed=request.seed,
                concurrency=request.concurrency or min(player.concurrency, most or player.concurrency),
                deterministic=player.deterministic,
                quiet=request.quiet,
                journal=journal,
            )
        if request.episodes is not None:
            with durable.replacing(request.episodes) as temporary:
                write_episodes(temporary, episodes)
        outcome = EvaluationOutcome(result, episodes, journal.path if journal else None)
        if result.failed == result.episodes and outcome.journal:
            outcome.journal.unlink()
        require_played(result, episodes, request.environment or "")
        return outcome
