"""Sampling ahead in lockstep: batches whose weights follow from their number, so that a run can be repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.collecting.ahead_collector import AheadCollector
from gagpo.collecting.batch_sampler import BatchSampler, Wave
from gagpo.collecting.collector import Collection
from gagpo.collecting.distributed_rollout import Rollout, packed, unpacked
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


@dataclass(frozen=True)
class Opened:
    """A place that has been opened: the ``number``-th of its wave."""

    wave: Wave
    number: int

    @property
    def place(self) -> int:
        return self.wave.places[self.number]

    @property
    def episodes(self) -> list[Episode]:
        """What was played there; empty until it has been."""
        return [episode for episode in self.wave.episodes or [] if episode.group == self.number]


class BatchesAhead(AheadCollector[BatchSampler]):
    """Collects with ``rollout.ahead`` and ``rollout.lockstep``.

    An update makes room for as many groups as it trained on. These are sampled with its weights, whenever the thread
    comes to them. So the weights that a group is sampled with, and what a curriculum that looks at outcomes chooses,
    follow from the order of updates alone, and groups come in the order of their places. A checkpoint holds the groups
    that older weights have sampled.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        super().__init__(settings, schedule, controllers, rollout)
        self._open: deque[Opened] = deque()  # neither trained on nor discarded
        self._carried: list[Opened] = []  # of these, after the last update, what older weights sample

    def _make_thread(self, agent: LanguageAgent, pool: Pool, iteration: int) -> tuple[BatchSampler, Callable[[], None]]:
        sampler = BatchSampler(agent, pool, self.settings.rollout.concurrency, iteration)
        sampler.play(self._opened(self._room(iteration), iteration))
        return sampler, sampler.run

    def _next(self, thread: BatchSampler, missing: int, iteration: int, found: Collection) -> list[Episode]:
        # The group of the next place; where none is left, as many more as are missing.
        if not self._open:
            thread.play(self._opened(missing, iteration))
        thread.wait_for([self._open[0].wave])
        opened = self._open.popleft()
        if opened.number == 0:
            found.clock.environment += opened.wave.clock.environment
            found.clock.generation += opened.wave.clock.generation
        return opened.episodes

    def _room(self, iteration: int) -> int:
        """How many groups may be opened: ``rollout.ahead + 1`` batches are open at most."""
        rolling = self.settings.rollout
        left = max(0, self.settings.training.iterations - iteration)
        return max(0, min(rolling.ahead + 1, left) * rolling.tasks - len(self._open))

    def _opened(self, count: int, version: int) -> list[Wave]:
        """Open the next ``count`` places, in waves of a batch; what a checkpoint left to be played comes first."""
        rolling, seed = self.settings.rollout, self.settings.seed
        places, self.due = self.due[:count], self.due[count:]
        fresh = range(self.position, self.position + count - len(places))
        places, self.position = [*places, *fresh], self.position + len(fresh)
        waves = []
        for first in range(0, count, rolling.tasks):
            wave = Wave(version, places[first : first + rolling.tasks], [])
            for number, place in enumerate(wave.places):
                task = self.schedule.open(place)
                samples = self.settings.world_of(task).samples
                jobs = group_jobs([task], samples, seed, f"place {place}", [rolling.temperature])
                wave.jobs += [replace(job, group=number) for job in jobs]
                self._open.append(Opened(wave, number))
            waves.append(wave)
        return waves

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights, and open what there is room for after ``iteration`` updates."""
        assert self._thread is not None
        self._thread.publish(tensors, iteration)
        self._carried = list(self._open)
        self._thread.play(self._opened(self._room(iteration), iteration))

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Collector.state_dict`; ``due`` are all places that are open, those of :meth:`sampled` included."""
        places = [*self.due, *(opened.place for opened in self._open)]
        return {**super().state_dict(), "due": sorted(places)}

    def sampled(self, seconds: float | None) -> bytes:
        """The groups that were open after the last update and that older weights have sampled; waits for these.

        What is not there after so many ``seconds`` is left out, and will be played by newer weights.
        """
        if self._thread is not None:
            with suppress(Exception) if seconds is not None else nullcontext():  # who has no time takes what there is
                self._thread.wait_for([opened.wave for opened in self._carried], seconds)
        known = [opened for opened in self._carried if opened.wave.episodes is not None]
        groups = [[opened.place, opened.wave.version, len(opened.episodes)] for opened in known]
        return packed([episode for opened in known for episode in opened.episodes], {"groups": groups})

    def load_sampled(self, data: bytes) -> None:
        """Take up what :meth:`sampled` gave, behind :meth:`load_state_dict`; ValueError, KeyError for anything else."""
        episodes, about = unpacked(data)
        first = 0
        for place, version, count in about["groups"]:
            own = [replace(episode, group=0) for episode in episodes[first : first + count]]
            if len(own) != count or place not in self.due:
                raise ValueError(f"the group of place {place} is not whole, or has been trained on")
            self._open.append(Opened(Wave(version, [place], [], own), 0))
            self.due.remove(place)
            first += count
        self._carried = list(self._open)
