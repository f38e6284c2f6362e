"""Sampling ahead in lockstep: batches whose weights follow from their number, so that a run can be repeated."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from gagpo.agents.agent import Agent, LanguageAgent
from gagpo.agents.branching.rollout import branched_rollout
from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.engines.weights import tensors_for
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import group_jobs
from gagpo.collecting.async_collector import staleness
from gagpo.collecting.batch_sampler import BatchSampler, Wave
from gagpo.collecting.collector import Collection, Collector, usable
from gagpo.collecting.distributed_rollout import Rollout, packed, unpacked
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.envs.errors import InvalidArgument
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


class BatchesAhead(Collector):
    """Collects with ``rollout.ahead`` and ``rollout.lockstep``; each task is trained on once, as without ``ahead``.

    An update makes room for as many groups as it trained on. These are sampled with its weights, whenever the thread
    comes to them. So the weights that a group is sampled with, and what a curriculum that looks at outcomes chooses,
    follow from the order of updates alone, and groups come in the order of their places. A checkpoint holds the groups
    that older weights have sampled. ``stats`` are those of :class:`gagpo.collecting.async_collector.AsyncCollector`.
    """

    def __init__(
        self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = branched_rollout
    ):
        super().__init__(settings, schedule, controllers, rollout)
        self._sampler: BatchSampler | None = None
        self._open: deque[Opened] = deque()  # neither trained on nor discarded
        self._carried: list[Opened] = []  # of these, after the last update, what older weights sample
        self._since = 0.0

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups; see :meth:`Collector.collect`.

        Groups that teach nothing count towards the rounds of dynamic sampling: ``rounds`` batches are looked at.
        """
        begun = time.perf_counter()
        sampler = self._sampler or self._start(agent, pool, iteration)
        wanted, found = self.settings.rollout.tasks, Collection()
        self.controllers.begin()
        looked = kept = 0
        last: list[list[Episode]] = []
        while kept < wanted and looked < wanted * self.controllers.sampling_rounds:
            # The group of the next place; where none is left, as many more as are missing.
            if not self._open:
                sampler.play(self._opened(wanted - kept, iteration))
            sampler.wait_for([self._open[0].wave])
            opened = self._open.popleft()
            played = self._placed([replace(episode, group=looked) for episode in opened.episodes])
            self.schedule.observe(played)
            looked += 1
            found.played += played
            last = [*last, played][-wanted:]
            lessons = self._kept(played)
            kept += bool(lessons)
            found.episodes += lessons
            if opened.number == 0:
                found.clock.environment += opened.wave.clock.environment
                found.clock.generation += opened.wave.clock.generation
        found.episodes = found.episodes or usable([episode for played in last for episode in played])
        found.rounds = -(-looked // wanted)
        now = time.perf_counter()
        found.clock.total, self._since = now - self._since, now
        found.stats = {**staleness(found.episodes, iteration), "stale_episodes": 0.0, "seconds_waited": now - begun}
        return found

    def _start(self, agent: Agent, pool: Pool, iteration: int) -> BatchSampler:
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(f"rollout.ahead samples with a language agent, got {type(agent).__name__}")
        self._sampler = sampler = BatchSampler(agent, pool, self.settings.rollout.concurrency, iteration)
        self._since = time.perf_counter()
        sampler.play(self._opened(self._room(iteration), iteration))
        sampler.start()
        return sampler

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

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """The engine goes on sampling meanwhile, awake, and takes the new weights between batches."""
        yield
        self.publish(tensors_for(engine, model), iteration)

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights, and open what there is room for after ``iteration`` updates."""
        assert self._sampler is not None
        self._sampler.publish(tensors, iteration)
        self._carried = list(self._open)
        self._sampler.play(self._opened(self._room(iteration), iteration))

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which engine and pool are the caller's, the engine with the newest weights."""
        return self._sampler.rest(engine) if self._sampler else nullcontext()

    def close(self) -> None:
        """End the thread, within seconds; what was under way is given up."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Collector.state_dict`; ``due`` are all places that are open, those of :meth:`sampled` included."""
        places = [*self.due, *(opened.place for opened in self._open)]
        return {**super().state_dict(), "due": sorted(places)}

    def sampled(self, seconds: float | None) -> bytes:
        """The groups that were open after the last update and that older weights have sampled; waits for these.

        What is not there after so many ``seconds`` is left out, and will be played by newer weights.
        """
        if self._sampler is not None:
            with suppress(Exception) if seconds is not None else nullcontext():  # who has no time takes what there is
                self._sampler.wait_for([opened.wave for opened in self._carried], seconds)
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
