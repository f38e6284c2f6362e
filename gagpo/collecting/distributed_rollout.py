"""Rollouts of all ranks together: each samples whole task groups, and all get the episodes of all.

Every rank then has the batch that a single process would have, so that credit, norms and controllers need no further
communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gagpo.agents.agent import Agent
from gagpo.agents.engines.offers import serving_engine
from gagpo.agents.rollout import Clock, Job, rollout
from gagpo.collecting.packing import packed, unpacked
from gagpo.data import Episode
from gagpo.distributed.errors import RanksDiffer
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings, SettingsError


class Rollout(Protocol):
    """A function that runs jobs: :func:`gagpo.agents.rollout.rollout`, or the same by all ranks together."""

    def __call__(
        self,
        agent: Agent,
        pool: Pool,
        jobs: Sequence[Job],
        *,
        concurrency: int = 256,
        deterministic: bool = True,
        on_finish: Callable[[Episode], None] | None = None,
    ) -> tuple[list[Episode], Clock]: ...


def require_fitting(settings: RunSettings, processes: int) -> None:
    """Raise SettingsError if the run cannot be spread over several ``processes``."""
    if settings.rollout.ahead:
        if settings.device != "cpu" and settings.engine.options.shares_gpu(settings.device):
            raise SettingsError(
                f"rollout.ahead={settings.rollout.ahead} samples while {processes} processes train, and engine "
                f"{settings.engine.name} samples on a GPU that one of them trains on",
                key="rollout.ahead",
                advice=f"name other GPUs with {serving_engine()} engine.options={{replicas: 1, gpus: [6]}}, or set "
                "rollout.ahead=0",
            )
        return  # the first rank samples all groups
    tasks = settings.rollout.tasks
    if tasks % processes:
        raise SettingsError(
            f"rollout.tasks={tasks} cannot be divided over {processes} processes",
            key="rollout.tasks",
            advice=f"set it to a multiple of {processes}, or processes to a divisor of {tasks}",
        )


def rollout_of(ranks: Ranks, interruptions: Interruptions, samplers: int | None = None) -> Rollout:
    """A rollout by all ranks together.

    Task group k is sampled by rank ``k mod samplers``, with the same seeds as on a single rank.

    samplers: number of ranks that have an engine, by default all.
    """
    if ranks.alone:
        return rollout

    def rollout_together(
        agent: Agent,
        pool: Pool,
        jobs: Sequence[Job],
        *,
        on_finish: Callable[[Episode], None] | None = None,
        **options: Any,
    ) -> tuple[list[Episode], Clock]:
        rank_jobs = [job for job in jobs if job.group % (samplers or ranks.world_size) == ranks.rank]
        episodes: list[Episode] = []
        clock = Clock()
        error: BaseException | None = None
        try:
            with interruptions.immediate():
                episodes, clock = rollout(agent, pool, rank_jobs, on_finish=on_finish, **options)
        except BaseException as caught:
            # Raised below on all ranks: one that left now would have the others wait for it in the gathering.
            episodes, error = [], caught
        header = {"error": error and type(error).__name__, "clock": vars(clock), "jobs": _digest(jobs)}
        shares = [unpacked(data) for data in ranks.gathered_bytes(packed(episodes, header))]
        headers = [rank_header for _, rank_header in shares]
        ranks.raise_together(error, [rank_header["error"] for rank_header in headers])
        if any(rank_header["jobs"] != header["jobs"] for rank_header in headers):
            raise RanksDiffer(
                "the ranks chose different tasks", advice="use the same software and data on all machines"
            )
        # In the order of the jobs, as one process would have them: sums over the batch then agree.
        order = {(job.group, job.sample): number for number, job in enumerate(jobs)}
        all_episodes = [episode for rank_episodes, _ in shares for episode in rank_episodes]
        all_episodes.sort(key=lambda episode: order[episode.group, episode.sample])
        reported = {(job.group, job.sample) for job in rank_jobs}
        for episode in all_episodes:
            if on_finish and (episode.group, episode.sample) not in reported:
                on_finish(episode)
        clocks = [Clock(**rank_header["clock"]) for rank_header in headers]
        return all_episodes, max(clocks, key=lambda rank_clock: rank_clock.total)  # the slowest rank's

    return rollout_together


def _digest(jobs: Sequence[Job]) -> str:
    return hashlib.sha256(repr(list(jobs)).encode()).hexdigest()
