"""Collecting with ``rollout.ahead``: a thread samples the coming batches while the trainer updates the model."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import Engine
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import Clock
from gagpo.agents.setup import make_engine
from gagpo.collecting import placement
from gagpo.collecting.async_rollout import AsyncRollout, VersionedAgent
from gagpo.collecting.channel import Channel
from gagpo.collecting.collector import Collection, Collector, usable
from gagpo.collecting.rollout_buffer import RolloutBuffer
from gagpo.controllers import Controllers
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.pool import Pool
from gagpo.envs.tasks import TaskSet
from gagpo.settings import RunSettings, SettingsError


def collector_for(settings: RunSettings, tasks: TaskSet, controllers: Controllers) -> Collector:
    """The collector that ``rollout.ahead`` asks for; SettingsError where several processes train one model."""
    ranks = torch.distributed
    if settings.rollout.ahead and ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
        raise SettingsError(
            "rollout.ahead samples in a thread of one process, and several train this model: set rollout.ahead=0, or "
            "train in one process"
        )
    kind = AsyncCollector if settings.rollout.ahead else Collector
    return kind(settings, tasks, controllers)


def sampling_engine(settings: RunSettings, model: torch.nn.Module, tokenizer: Any) -> Engine:
    """The run's engine; with ``rollout.ahead`` one that keeps weights of its own, or SettingsError."""
    chosen = settings.engine
    if not settings.rollout.ahead:
        return make_engine(chosen.name, model, tokenizer, **placement.engine_arguments(chosen))
    arguments = placement.engine_arguments(chosen)
    if chosen.name == "transformers":  # a graph cannot be captured while another thread launches kernels
        arguments |= {"own": True, "compile": "never"}
    engine = make_engine(chosen.name, model, copy.deepcopy(tokenizer), **arguments)
    if engine.shares_weights:
        raise SettingsError(
            f"engine {chosen.name} samples from the very weights in training, and rollout.ahead samples meanwhile; "
            "set rollout.ahead=0"
        )
    return engine


class AsyncCollector(Collector):
    """Hands over groups in the order in which they become whole; each task is trained on once, as without ``ahead``.

    The thread begins with the first :meth:`collect` and ends with :meth:`close`. ``stats`` of a collection are
    ``staleness_mean`` and ``staleness_max`` (updates that a turn trained on lies behind), ``stale_episodes`` (dropped
    for ``rollout.max_staleness``, and played again) and ``seconds_waited`` (for the batch).
    """

    def __init__(self, settings: RunSettings, tasks: TaskSet, controllers: Controllers):
        super().__init__(settings, tasks, controllers)
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._rollout: AsyncRollout | None = None
        self._heard = Clock()  # the stream's, at the last collection
        self._since = 0.0

    def collect(self, agent: Any, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups of ``rollout.samples`` episodes; see :meth:`Collector.collect`.

        Groups that teach nothing count towards the rounds of dynamic sampling: ``rounds`` batches are looked at.
        """
        begun = time.perf_counter()
        channel, thread = self._started(agent, pool, iteration)
        wanted, found = self.settings.rollout.tasks, Collection()
        self.controllers.begin()
        looked = kept = 0
        last: list[list[Episode]] = []
        while kept < wanted and looked < wanted * self.controllers.sampling_rounds:
            group, dropped = channel.group(thread)
            played = [replace(episode, group=looked) for episode in group.played()]
            looked += 1
            found.stale += dropped
            found.played += played
            last = [*last, played][-wanted:]
            lessons = self._kept(played)
            if lessons:
                kept += 1
                found.episodes += lessons
            else:
                channel.discard(group)
        found.episodes = found.episodes or usable([episode for played in last for episode in played])
        found.rounds = -(-looked // wanted)
        found.clock = self._spent()
        found.stats = {**_staleness(found.episodes, iteration), "stale_episodes": float(len(found.stale))}
        found.stats["seconds_waited"] = time.perf_counter() - begun
        return found

    def _started(self, agent: Any, pool: Pool, iteration: int) -> tuple[Channel, threading.Thread]:
        if self._channel is not None and self._thread is not None:
            return self._channel, self._thread
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(f"rollout.ahead samples with a language agent, got {type(agent).__name__}")
        buffer = RolloutBuffer(self.settings, self.task_at)
        buffer.restore(self.position, self.due, iteration)
        self._channel = Channel(buffer)
        rolling = self.settings.rollout
        self._rollout = AsyncRollout(VersionedAgent(agent, self._channel), pool, self._channel, rolling.concurrency)
        self._thread = threading.Thread(
            target=self._rollout.run, args=(rolling.lockstep,), name="sampling", daemon=True
        )
        self._since = time.perf_counter()
        self._thread.start()
        return self._channel, self._thread

    def _spent(self) -> Clock:
        """The stream's time since the last collection."""
        assert self._rollout is not None
        now, clock, before = time.perf_counter(), self._rollout.clock, self._heard
        self._heard = Clock(clock.environment, clock.generation)
        spent = Clock(clock.environment - before.environment, clock.generation - before.generation, now - self._since)
        self._since = now
        return spent

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """The engine goes on sampling meanwhile, awake, and takes the new weights between turns."""
        assert self._channel is not None
        yield
        self._channel.publish(named_tensors(model), iteration)
        self.position, self.due = self._channel.state()

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which engine and pool are the caller's, the engine with the newest weights."""
        if self._channel is None or self._thread is None:
            return nullcontext()
        return self._channel.rest(self._thread, engine)

    def close(self) -> None:
        """End the thread, within seconds; what was under way is given up."""
        if self._channel is not None and self._thread is not None:
            self._channel.stop(self._thread)
        self._channel = self._thread = None


def _staleness(episodes: Sequence[Episode], iteration: int) -> dict[str, float]:
    behind = [iteration - turn.version for episode in episodes for turn in episode.turns if turn.version is not None]
    return {
        "staleness_mean": float(np.mean(behind)) if behind else 0.0,
        "staleness_max": float(max(behind, default=0)),
    }
