"""Collecting with ``rollout.ahead``, not in lockstep: a thread samples coming batches while the trainer updates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch

from gagpo.agents.agent import Agent, LanguageAgent
from gagpo.agents.branching.rollout import branched_rollout
from gagpo.agents.engines.base import Engine, NamedTensor, claim_device
from gagpo.agents.engines.weights import tensors_for
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock
from gagpo.collecting.async_rollout import AsyncRollout, VersionedAgent
from gagpo.collecting.channel import Channel
from gagpo.collecting.collector import Collection, Collector, usable
from gagpo.collecting.distributed_rollout import Rollout
from gagpo.collecting.rollout_buffer import RolloutBuffer
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings


class AsyncCollector(Collector):
    """Hands over groups in the order in which they become whole; each task is trained on once, as without ``ahead``.

    The thread begins with the first :meth:`collect` and ends with :meth:`close`. ``stats`` of a collection are
    ``staleness_mean`` and ``staleness_max`` (updates that a turn trained on lies behind), ``stale_episodes`` (dropped
    for ``rollout.max_staleness``, and played again) and ``seconds_waited`` (for the batch).
    """

    def __init__(
        self, settings: RunSettings, schedule: Schedule, controllers: Controllers, rollout: Rollout = branched_rollout
    ):
        super().__init__(settings, schedule, controllers, rollout)
        self._stream: AsyncRollout | None = None
        self._heard = Clock()  # the stream's, at the last collection
        self._since = 0.0

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups; see :meth:`Collector.collect`.

        Groups that teach nothing count towards the rounds of dynamic sampling: ``rounds`` batches are looked at.
        """
        begun = time.perf_counter()
        stream = self._stream or self._start(agent, pool, iteration)
        wanted, found = self.settings.rollout.tasks, Collection()
        self.controllers.begin()
        looked = kept = 0
        last: list[list[Episode]] = []
        while kept < wanted and looked < wanted * self.controllers.sampling_rounds:
            # The next whole group, whatever its task: trained on where it teaches something, counted in any case.
            group, dropped = stream.channel.group()
            played = self._placed([replace(episode, group=looked) for episode in group.played()])
            self.schedule.observe(played)
            looked += 1
            found.stale += dropped
            found.played += played
            last = [*last, played][-wanted:]
            lessons = self._kept(played)
            if lessons:
                kept += 1
                found.episodes += lessons
            else:
                stream.channel.discard(group)
        found.episodes = found.episodes or usable([episode for played in last for episode in played])
        found.rounds = -(-looked // wanted)
        found.clock = self._spent(stream)
        found.stats = {**staleness(found.episodes, iteration), "stale_episodes": float(len(found.stale))}
        found.stats["seconds_waited"] = time.perf_counter() - begun
        return found

    def _start(self, agent: Agent, pool: Pool, iteration: int) -> AsyncRollout:
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(f"rollout.ahead samples with a language agent, got {type(agent).__name__}")
        buffer = RolloutBuffer(self.settings, self.schedule.open)
        buffer.restore(self.position, self.due, iteration)
        channel, rolling = Channel(buffer), self.settings.rollout
        self._stream = stream = AsyncRollout(VersionedAgent(agent, channel), pool, channel, rolling.concurrency)
        self._since = time.perf_counter()
        device = getattr(agent.engine, "device", None)

        def work() -> None:
            if device is not None:
                claim_device(device)
            stream.run(rolling.lockstep)

        channel.start(work)
        return stream

    def _spent(self, stream: AsyncRollout) -> Clock:
        """The stream's time since the last collection."""
        now, clock, before = time.perf_counter(), stream.clock, self._heard
        self._heard = Clock(clock.environment, clock.generation)
        spent = Clock(clock.environment - before.environment, clock.generation - before.generation, now - self._since)
        self._since = now
        return spent

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """The engine goes on sampling meanwhile, awake, and takes the new weights between turns."""
        yield
        self.publish(tensors_for(engine, model), iteration)

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights, after ``iteration`` updates."""
        assert self._stream is not None
        self._stream.channel.publish(tensors, iteration)
        self.position, self.due = self._stream.channel.state()

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which engine and pool are the caller's, the engine with the newest weights."""
        return self._stream.channel.rest(engine) if self._stream else nullcontext()

    def close(self) -> None:
        """End the thread, within seconds; what was under way is given up."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.channel.stop()


def staleness(episodes: Sequence[Episode], iteration: int) -> dict[str, float]:
    """How many updates the turns of ``episodes`` lie behind ``iteration``, as metrics."""
    behind = [iteration - turn.version for episode in episodes for turn in episode.turns if turn.version is not None]
    return {
        "staleness_mean": float(np.mean(behind)) if behind else 0.0,
        "staleness_max": float(max(behind, default=0)),
    }
