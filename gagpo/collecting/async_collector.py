"""Collecting with ``rollout.ahead``, not in lockstep: a thread samples coming batches while the trainer updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import NamedTensor
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock, rollout
from gagpo.collecting.ahead_collector import AheadCollector
from gagpo.collecting.async_rollout import AsyncRollout, VersionedAgent
from gagpo.collecting.channel import Channel
from gagpo.collecting.collector import Collection
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.rollout_buffer import Group, RolloutBuffer
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


class AsyncCollector(AheadCollector[Channel]):
    """Hands over groups in the order in which they become whole."""

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = rollout):
        super().__init__(settings, schedule, controllers, rollout)
        self._clock = self._heard = Clock()  # the rollout's, and what it said at the last group
        self._group: Group | None = None  # the last

    def _make_thread(self, agent: LanguageAgent, pool: Pool, iteration: int) -> tuple[Channel, Callable[[], None]]:
        buffer = RolloutBuffer(self.settings, self.schedule.open)
        buffer.restore(self.position, self.due, iteration)
        channel, rolling = Channel(buffer), self.settings.rollout
        stream = AsyncRollout(VersionedAgent(agent, channel), pool, channel, rolling.concurrency)
        self._clock = stream.clock
        return channel, lambda: stream.run(rolling.lockstep)

    def _next(self, thread: Channel, missing: int, iteration: int, found: Collection) -> list[Episode]:
        self._group, dropped = thread.group()
        found.stale += dropped
        now = Clock(self._clock.environment, self._clock.generation)
        found.clock.environment += now.environment - self._heard.environment
        found.clock.generation += now.generation - self._heard.generation
        self._heard = now
        return self._group.played()

    def _discard(self, thread: Channel) -> None:
        assert self._group is not None
        thread.discard(self._group)

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights, after ``iteration`` updates; they are taken between turns."""
        assert self._thread is not None
        self._thread.publish(tensors, iteration)
        self.position, self.due = self._thread.state()
