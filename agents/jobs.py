"""The episodes that a rollout runs, and where they come from and go to.

Source and sink are two protocols in place of hooks that a loop's subclass overrides: the loop is the same with a fixed
list, where the caller waits for all episodes, and with ``rollout.ahead``, where groups are opened while it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gagpo.data import Episode

if TYPE_CHECKING:
    from gagpo.agents.rollout import RolloutLoop


@dataclass(frozen=True)
class Job:
    """One episode to run. Jobs of a group share task and environment seed.

    sample: number of the episode within the group.
    seed: of the agent's choices.
    temperature: of the responses; None for the agent's own.
    """

    task: str
    group: int
    sample: int
    seed: int
    environment_seed: int
    temperature: float | None = None


def derive_seed(*keys: object) -> int:
    """A 48-bit seed determined by the keys, the same in every process."""
    digest = hashlib.blake2b("\0".join(map(str, keys)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def group_jobs(
    tasks: Sequence[str],
    samples: int | Sequence[int],
    seed: int,
    label: object = 0,
    temperatures: Sequence[float] | None = None,
) -> list[Job]:
    """``samples`` jobs for each task; the k-th task forms group k.

    label: gives different rollouts different seeds.
    temperatures: one for each task; None for the agent's own.
    """
    jobs = []
    for group, task in enumerate(tasks):
        environment_seed = derive_seed(seed, label, group, task) % 2**31
        temperature = None if temperatures is None else float(temperatures[group])
        size = samples if isinstance(samples, int) else samples[group]
        for sample in range(size):
            agent_seed = derive_seed(seed, label, group, task, sample)
            jobs.append(Job(task, group, sample, agent_seed, environment_seed, temperature))
    return jobs


class JobSource(Protocol):
    """Where the episodes of a rollout come from: a fixed list, or the open groups of ``rollout.ahead``."""

    def prepare(self, loop: RolloutLoop) -> None:
        """Called before every round of starting jobs; may wait for jobs, and raise to end the rollout."""

    def next_job(self) -> tuple[int, Job] | None:
        """The slot and the job of the next episode to start; None if none can start at the moment."""

    @property
    def withholding(self) -> bool:
        """Whether ready episodes must wait, because somebody else needs the engine."""

    def wait_limit(self) -> float | None:
        """Most seconds of one wait for the environments, None for no limit; may raise to end the rollout."""


class EpisodeSink(Protocol):
    """Where the finished episodes of a rollout go."""

    def deliver(self, slot: int, episode: Episode) -> None:
        """Take the finished episode of ``slot``."""


class JobList:
    """Source and sink of a fixed list of jobs; the slot of a job is its index.

    on_finish: called with every episode as it ends.
    """

    withholding = False

    def __init__(self, jobs: Sequence[Job], on_finish: Callable[[Episode], None] | None = None):
        self._pending = iter(enumerate(jobs))
        self._on_finish = on_finish
        self._episodes: dict[int, Episode] = {}  # by slot

    @property
    def episodes(self) -> list[Episode]:
        """The finished episodes, in the order of the jobs."""
        return [self._episodes[slot] for slot in sorted(self._episodes)]

    def prepare(self, loop: RolloutLoop) -> None:
        pass

    def next_job(self) -> tuple[int, Job] | None:
        return next(self._pending, None)

    def wait_limit(self) -> float | None:
        return None

    def deliver(self, slot: int, episode: Episode) -> None:
        self._episodes[slot] = episode
        if self._on_finish:
            self._on_finish(episode)
