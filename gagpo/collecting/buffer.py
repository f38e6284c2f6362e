"""The buffer of task groups between what samples them (the producer) and what trains on them (the consumer).

One condition guards the buffer and the fields of the thread. So a thread that waits for the one also sees changes of
the other. Sampling and updates happen outside it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gagpo.agents.rollout import Job, derive_seed, group_jobs
from gagpo.data import Episode
from gagpo.settings import RunSettings


@dataclass(eq=False)
class Group:
    """The episodes of one task.

    place: index in the run's order of task groups.
    version: number of updates of the weights that sample it; None for the newest weights.
    jobs: one per episode.
    episodes: in the order of the jobs, None until they have ended.
    attempts: how often each episode was dropped.
    """

    place: int
    version: int | None
    jobs: list[Job]
    episodes: list[Episode | None] = field(init=False)
    attempts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.episodes = [None] * len(self.jobs)
        self.attempts = [0] * len(self.jobs)

    @property
    def complete(self) -> bool:
        return None not in self.episodes

    def finished(self) -> list[Episode]:
        """The episodes that have ended."""
        return [episode for episode in self.episodes if episode is not None]


class GroupBuffer:
    """The open task groups, at most ``rollout.ahead`` batches besides the one that is collected.

    With ``rollout.ahead=0`` the consumer opens a batch, samples it and takes it. Otherwise a thread samples, and both
    threads hold ``changed`` while they use the buffer; whoever changes something the other may wait for notifies.

    Groups are taken in the order in which they become complete or, with ``rollout.deterministic``, were opened.

    open_task: returns the task of a place that is being opened.
    iteration: updates done.
    position: the first place that was never opened.
    due: places before ``position`` that are to be sampled again, from a checkpoint.
    """

    def __init__(self, settings: RunSettings, open_task: Callable[[int], str]):
        self.settings = settings
        self.changed = threading.Condition()
        self.iteration = 0
        self.position = 0
        self.due: list[int] = []
        self.groups: list[Group] = []
        self._open_task = open_task
        self._complete: list[Group] = []
        self._pending: deque[tuple[Group, int]] = deque()  # group and sample of episodes that have not begun
        self._dropped: list[Episode] = []

    @property
    def places(self) -> list[int]:
        """Places before ``position`` that were not taken, for a checkpoint."""
        return sorted([*self.due, *(group.place for group in self.groups)])

    # The consumer's side ----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many groups may be opened, up to ``rollout.ahead + 1`` batches or what the run still needs."""
        rolling = self.settings.rollout
        remaining = max(0, self.settings.training.iterations - self.iteration)
        return max(0, min(rolling.ahead + 1, remaining) * rolling.tasks - len(self.groups))

    def next_places(self, count: int) -> list[int]:
        """Count the next ``count`` places as opened, those that are due first."""
        indices = []
        for _ in range(count):
            index = self.due.pop(0) if self.due else self.position
            self.position = max(self.position, index + 1)
            indices.append(index)
        return indices

    def open(self, count: int) -> None:
        """Open the next ``count`` places, with seeds that depend on the place alone."""
        rolling = self.settings.rollout
        version = self.iteration if rolling.deterministic else None
        for index in self.next_places(count):
            task = self._open_task(index)
            # Seeds from the place and not from a counter of episodes: what was opened before does not matter.
            jobs = group_jobs([task], rolling.group_size, self.settings.seed, f"place {index}", [rolling.temperature])
            self.add(Group(index, version, jobs))

    def add(self, group: Group) -> None:
        """Open a group at a place of :meth:`next_places`."""
        self.groups.append(group)
        self._pending.extend((group, sample) for sample in range(len(group.jobs)))

    def take(self) -> Group | None:
        """The next complete group, or None. Episodes that have become too old are dropped and sampled again."""
        for group in self.groups:
            self._drop_stale(group)
        candidates = self.groups[:1] if self.settings.rollout.deterministic else self._complete
        for group in candidates:
            if group.complete:
                self._complete.remove(group)
                self.groups.remove(group)
                return group
        return None

    def dropped(self) -> list[Episode]:
        """The episodes dropped since the last call; their turns were sampled and count."""
        episodes, self._dropped = self._dropped, []
        return episodes

    # The producer's side ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether there is an episode to begin."""
        return bool(self._pending)

    def next_episode(self) -> tuple[Group, int] | None:
        """The next episode to begin, as its group and sample."""
        return self._pending.popleft() if self._pending else None

    def next_batch(self) -> list[tuple[Group, int]]:
        """The episodes of at most ``rollout.tasks`` groups for the same weights."""
        pending = list(dict.fromkeys(group for group, _ in self._pending))
        batch = [group for group in pending if group.version == pending[0].version][: self.settings.rollout.tasks]
        return [self._pending.popleft() for group in batch for _ in group.jobs]

    def deliver(self, group: Group, sample: int, episode: Episode) -> None:
        group.episodes[sample] = episode
        if group.complete:
            self._complete.append(group)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The places to continue with: ``due`` are those before ``position`` that were not taken."""
        with self.changed:
            return {"position": self.position, "due": self.places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])
        self.due = [int(index) for index in state["due"]]

    def restore(self, place: int, version: int, episodes: Sequence[Episode]) -> None:
        """Add a complete group from a checkpoint; ValueError if its place is not due."""
        self.due.remove(place)
        group = Group(place, version, [])
        group.episodes = [*episodes]
        self.groups.append(group)
        self._complete.append(group)

    def _drop_stale(self, group: Group) -> None:
        """Drop the episodes that exceed ``rollout.max_staleness``, so that they are sampled again.

        A new attempt keeps the environment's seed and gets a new seed for its responses.
        """
        for sample, episode in enumerate(list(group.episodes)):
            if episode is None or age(episode, self.iteration) <= self.settings.rollout.max_staleness:
                continue
            if group in self._complete:
                self._complete.remove(group)
            self._dropped.append(episode)
            group.episodes[sample] = None
            group.attempts[sample] += 1
            job, label = group.jobs[sample], f"place {group.place}"
            seed = derive_seed(self.settings.seed, label, job.task, sample, group.attempts[sample])
            group.jobs[sample] = replace(job, seed=seed)
            # First, because its group is older than all that have not begun.
            self._pending.appendleft((group, sample))


def age(episode: Episode, iteration: int) -> int:
    """Updates since the weights of the episode's first turn; 0 for failed episodes and those without turns."""
    if episode.outcome == "failed":
        return 0
    return max((iteration - turn.version for turn in episode.turns if turn.version is not None), default=0)
