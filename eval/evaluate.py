"""The panel runner: plays every task of a fixed panel exactly as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gagpo.agents.agent import Agent
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, Job, group_jobs, rollout
from gagpo.base.progress import track
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import TaskSet
from gagpo.eval.journal import Journal
from gagpo.eval.results import EvalResult, Panel
from gagpo.runs.reading import in_one_line

PANEL_SEED = 20_260_101  # the episodes' seeds belong to the panel, not to the run that is measured


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
    """Play every task with ``agent``; returns the result and the episodes, in the panel's order.

    The seeds are fixed by the panel and ``seed``, so every model meets the same episodes.

    pool: runs the environment.
    environment, kwargs: what ``pool`` runs; printed with the result.
    model, temperature: what plays; printed with the result. The temperature is None if no tokens are sampled.
    tries: episodes of each task.
    concurrency: episodes at once.
    lockstep: the agent answers all episodes that are ready together.
    journal: open; its episodes are not played again, and every other one is written to it as it ends.
    rollout: plays the jobs over a pool; a trainer of several ranks has one that distributes them.
    """
    tasks.require()
    conditions = dict(getattr(agent, "conditions", {}))
    with in_one_line():
        panel = Panel(environment, tasks.split, tasks.hash, len(tasks), tries, dict(kwargs), seed, conditions)
    jobs = group_jobs(tasks.ids, tries, PANEL_SEED + seed, f"panel {tasks.split}")
    with track(f"evaluating on {tasks.split}", len(jobs), "episodes", quiet) as meter:

        def play(missing: Sequence[Job], on_finish: Callable[[Episode], None]) -> list[Episode]:
            return rollout(agent, pool, missing, concurrency=concurrency, lockstep=lockstep, on_finish=on_finish)[0]

        episodes = play_missing(jobs, journal, play, meter.advance)
    return EvalResult.from_episodes(episodes, panel, model, temperature), episodes


def play_missing(
    jobs: Sequence[Job],
    journal: Journal | None,
    play: Callable[[Sequence[Job], Callable[[Episode], None]], list[Episode]],
    on_finish: Callable[[], None],
) -> list[Episode]:
    """The episodes of ``jobs``, in order; those that ``journal`` holds are not played again.

    journal: every new episode is written to it as it ends.
    play: plays the missing jobs.
    on_finish: called once for each episode, those of the journal first.
    """
    played = dict(journal.episodes) if journal else {}
    missing = [job for job in jobs if (job.task, job.sample) not in played]

    def finished(episode: Episode) -> None:
        if journal:
            journal.append(episode)
        on_finish()

    for _ in range(len(jobs) - len(missing)):
        on_finish()
    played |= {(episode.task, episode.sample): episode for episode in play(missing, finished)}
    return [played[job.task, job.sample] for job in jobs]
