"""Play every task of a fixed panel a fixed number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gagpo.agents.agent import Agent
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, group_jobs, rollout
from gagpo.base.progress import track
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import TaskSet
from gagpo.eval.journal import Journal
from gagpo.eval.results import EvalResult, Panel
from gagpo.runs.reading import in_one_line

PANEL_SEED = 20_260_101  # the seeds of the episodes depend on the panel, not on the run that is measured


def choose_panel(tasks: TaskSet, count: int | None = None) -> TaskSet:
    """The whole split, or ``count`` tasks spread evenly over its sorted ids; raises ``EmptySplit`` if empty."""
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
    lockstep: bool = True,
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
    lockstep: the agent answers all episodes that are ready in one batch.
    journal: its episodes are not played again; new ones are appended as they end.
    rollout: plays the jobs on the pool; training on several ranks passes one that distributes them.
    """
    tasks.require()
    conditions = dict(getattr(agent, "conditions", {}))
    with in_one_line():
        panel = Panel(environment, tasks.split, tasks.hash, len(tasks), tries, dict(kwargs), seed, conditions)
    jobs = group_jobs(tasks.ids, tries, PANEL_SEED + seed, f"panel {tasks.split}")
    played = dict(journal.episodes) if journal else {}
    missing = [job for job in jobs if (job.task, job.sample) not in played]
    with track(f"evaluating on {tasks.split}", len(jobs), "episodes", quiet) as meter:
        for _ in range(len(jobs) - len(missing)):
            meter.advance()

        def finished(episode: Episode) -> None:
            if journal:
                journal.append(episode)
            meter.advance()

        new, _ = rollout(agent, pool, missing, concurrency=concurrency, lockstep=lockstep, on_finish=finished)
    played |= {(episode.task, episode.sample): episode for episode in new}
    episodes = [played[job.task, job.sample] for job in jobs]
    return EvalResult.from_episodes(episodes, panel, model, temperature), episodes
