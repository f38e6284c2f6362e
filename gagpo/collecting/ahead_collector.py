"""Collecting with ``rollout.ahead``: what is alike whether or not batches are sampled in lockstep."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch

from gagpo.agents.agent import Agent, LanguageAgent
from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.engines.weights import tensors_for
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import rollout
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.collector import Collection, Collector, usable
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.sampling_thread import SamplingThread
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings

ThreadT = TypeVar("ThreadT", bound=SamplingThread)


class AheadCollector(Collector, ABC, Generic[ThreadT]):
    """Takes groups, one after another, from a thread that samples while the trainer updates.

    The thread begins with the first :meth:`collect` and ends with :meth:`close`. Each task is trained on once, as
    without ``ahead``. ``stats`` of a collection are ``staleness_mean`` and ``staleness_max`` (updates that a turn
    trained on lies behind), ``stale_episodes`` (dropped for ``rollout.max_staleness``, and played again) and
    ``seconds_waited`` (for the batch).
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        super().__init__(settings, schedule, controllers, rollout)
        self._thread: ThreadT | None = None
        self._since = 0.0

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups; see :meth:`Collector.collect`.

        Groups that teach nothing count towards the rounds of dynamic sampling: ``rounds`` batches are looked at.
        """
        begun = time.perf_counter()
        thread = self._thread or self._begin(agent, pool, iteration)
        wanted, found = self.settings.rollout.tasks, Collection()
        self.controllers.begin()
        looked = kept = 0
        last: list[list[Episode]] = []
        while kept < wanted and looked < wanted * self.controllers.sampling_rounds:
            # The next group, whatever its task: trained on where it teaches something, counted in any case.
            group = self._next(thread, wanted - kept, iteration, found)
            played = self._placed([replace(episode, group=looked) for episode in group])
            self.schedule.observe(played)
            looked += 1
            found.played += played
            last = [*last, played][-wanted:]
            lessons = self._kept(played)
            kept += bool(lessons)
            found.episodes += lessons
            if not lessons:
                self._discard(thread)
        found.episodes = found.episodes or usable([episode for played in last for episode in played])
        found.rounds = -(-looked // wanted)
        now = time.perf_counter()
        found.clock.total, self._since = now - self._since, now
        found.stats = {**staleness(found.episodes, iteration), "stale_episodes": float(len(found.stale))}
        found.stats["seconds_waited"] = now - begun
        return found

    def _begin(self, agent: Agent, pool: Pool, iteration: int) -> ThreadT:
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(f"rollout.ahead samples with a language agent, got {type(agent).__name__}")
        thread, work = self._make_thread(agent, pool, iteration)
        self._since, self._thread = time.perf_counter(), thread
        thread.start(agent.engine, work)
        return thread

    @abstractmethod
    def _make_thread(self, agent: LanguageAgent, pool: Pool, iteration: int) -> tuple[ThreadT, Callable[[], None]]:
        """The thread, not begun yet, and what it is to do."""

    @abstractmethod
    def _next(self, thread: ThreadT, missing: int, iteration: int, found: Collection) -> list[Episode]:
        """Wait for the episodes of the next group, of which ``missing`` more may be wanted.

        What else is known by then goes into ``found``: episodes that were dropped, and the time that playing took.
        """

    def _discard(self, thread: ThreadT) -> None:
        """The group that came last teaches nothing."""

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """The engine goes on sampling meanwhile, awake, and takes the new weights when no response is under way."""
        yield
        self.publish(tensors_for(engine, model), iteration)

    @abstractmethod
    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights, after ``iteration`` updates."""

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which engine and pool are the caller's, the engine with the newest weights."""
        return self._thread.rest(engine) if self._thread else nullcontext()

    def close(self) -> None:
        """End the thread, within seconds; what was under way is given up."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


def staleness(episodes: Sequence[Episode], iteration: int) -> dict[str, float]:
    """How many updates the turns of ``episodes`` lie behind ``iteration``, as metrics."""
    behind = [iteration - turn.version for episode in episodes for turn in episode.turns if turn.version is not None]
    return {
        "staleness_mean": float(np.mean(behind)) if behind else 0.0,
        "staleness_max": float(max(behind, default=0)),
    }
