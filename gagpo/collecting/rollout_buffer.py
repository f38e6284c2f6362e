"""The buffer of sampling ahead: which tasks are due, under way, waiting to be trained on, and done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Job, derive_seed, group_jobs
from gagpo.settings import RunSettings


@dataclass(frozen=True)
class RolloutRequest:
    """One episode to play. attempt: how often it was dropped before."""

    place: int
    sample: int
    attempt: int
    job: Job


class Group:
    """A task's episodes, None where one is still to come. place: of the task in the run's order."""

    def __init__(self, place: int, task: str, samples: int):
        self.place, self.task = place, task
        self.episodes: list[Episode | None] = [None] * samples
        self.attempts = [0] * samples

    @property
    def complete(self) -> bool:
        return None not in self.episodes

    def played(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode is not None]


class RolloutBuffer:
    """Opens tasks in the run's order, and knows each of them until it has been trained on or discarded.

    At most ``rollout.ahead + 1`` batches of tasks are open at a time, the one that is being trained on among them, and
    never more than the run still needs. A group is handed over when all its episodes are there, in the order in which
    groups become whole. Not safe for threads: :class:`gagpo.collecting.channel.Channel` holds the lock.
    """

    def __init__(self, settings: RunSettings, task_at: Callable[[int], str]):
        self.settings = settings
        self.task_at = task_at
        self.position = 0  # the next place to open when nothing is due
        self.iteration = 0
        self._due: deque[int] = deque()
        self._groups: dict[int, Group] = {}
        self._complete: deque[int] = deque()
        self._held: set[int] = set()
        self._requests: deque[RolloutRequest] = deque()

    @property
    def due(self) -> list[int]:
        """Places before ``position`` whose tasks were neither trained on nor discarded; with it, all to checkpoint."""
        return sorted({*self._due, *self._groups})

    def restore(self, position: int, due: Sequence[int], iteration: int) -> None:
        """Begin where a checkpoint ended; what was under way then is due again, before anything new."""
        self.position, self.iteration, self._due = position, iteration, deque(sorted(due))

    def next(self) -> RolloutRequest | None:
        """An episode to begin now; None while enough is open."""
        if not self._requests and len(self._groups) < self._room():
            place = self._due.popleft() if self._due else self.position
            self.position = max(self.position, place + 1)
            task = self.task_at(place)
            samples = self.settings.world_of(task).samples
            self._groups[place] = Group(place, task, samples)
            self._requests.extend(self._request_for(place, sample) for sample in range(samples))
        return self._requests.popleft() if self._requests else None

    def _room(self) -> int:
        rolling = self.settings.rollout
        left = max(0, self.settings.training.iterations - self.iteration)
        return min(rolling.ahead + 1, left) * rolling.tasks

    def _request_for(self, place: int, sample: int) -> RolloutRequest:
        """The attempts of a group share the environment's seed, and each has its own for the responses."""
        group, rolling, seed = self._groups[place], self.settings.rollout, self.settings.seed
        label, attempt = f"place {place}", group.attempts[sample]
        job = group_jobs([group.task], len(group.episodes), seed, label, [rolling.temperature])[sample]
        if attempt:
            job = replace(job, seed=derive_seed(seed, label, group.task, sample, attempt))
        return RolloutRequest(place, sample, attempt, job)

    def deliver(self, request: RolloutRequest, episode: Episode) -> None:
        """Enter a finished episode."""
        group = self._groups[request.place]
        group.episodes[request.sample] = episode
        if group.complete:
            self._complete.append(request.place)

    def again(self, place: int, sample: int) -> None:
        """Have an episode played anew, before anything else is begun."""
        group = self._groups[place]
        group.episodes[sample] = None
        group.attempts[sample] += 1
        self._requests.append(self._request_for(place, sample))

    def drop_stale(self) -> list[Episode]:
        """Drop the finished episodes that have become too old to be trained on next; they are played anew."""
        dropped = []
        for place in sorted(self._groups.keys() - self._held):
            # Ask for each old episode again; a group that loses one waits for it and is no longer to be handed over.
            group = self._groups[place]
            was_complete = group.complete
            for sample, episode in enumerate(list(group.episodes)):
                if episode is not None and self.too_old(episode):
                    dropped.append(episode)
                    self.again(place, sample)
            if was_complete and not group.complete:
                self._complete.remove(place)
        return dropped

    def too_old(self, episode: Episode) -> bool:
        """Whether an episode would be older than ``rollout.max_staleness`` in the coming update."""
        return age(episode, self.iteration) > self.settings.rollout.max_staleness

    def take(self) -> Group | None:
        """The next whole group, which is held until :meth:`discard` or :meth:`trained`; None where there is none."""
        if not self._complete:
            return None
        place = self._complete.popleft()
        self._held.add(place)
        return self._groups[place]

    def discard(self, group: Group) -> None:
        """A group that teaches nothing makes room for another task."""
        self._held.discard(group.place)
        del self._groups[group.place]

    def trained(self, iteration: int) -> None:
        """An update is done, on all groups that are held; ``iteration`` of them have been."""
        for place in self._held:
            del self._groups[place]
        self._held.clear()
        self.iteration = iteration


def age(episode: Episode, iteration: int) -> int:
    """Updates that the episode's oldest turn lies behind; 0 for one that has no turns or is not learned from."""
    if episode.outcome == "failed":
        return 0
    return max((iteration - turn.version for turn in episode.turns if turn.version is not None), default=0)
