"""Collecting with ``rollout.ahead``: one thread samples coming batches while the trainer updates the weights::

      trainer                            GroupBuffer                        sampling thread
      -------                            -----------                        ---------------
      publish(weights, version 2)
        |  opens places 8 to 11  ---->   place 8   version 2   pending
        |                                place 9   version 2   pending
        |                                ...
        |                                place 4   version 1   pending ---> load weights 1
        |                                                                     |  play in engine and pool
      collect()                                                               v
        |  takes complete groups <----   place 5   version 1   complete <--- deliver
        v
      credit, update, publish(weights, version 3), ...

An update takes a batch of groups and opens as many. With ``rollout.deterministic`` a group is sampled with the weights
of the update that opened it. So its weights depend only on the number of the update, and a run can be repeated
bit-identically. A checkpoint stores the groups that older weights have sampled.

Without deterministic (version None) episodes start as soon as there is room, and new weights are loaded between turns.
Episodes older than ``rollout.max_staleness`` are dropped and played again. A checkpoint stores the places to replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gagpo.agents.agent import Agent, LanguageAgent
from gagpo.agents.engines.base import Engine
from gagpo.agents.rollout import Clock
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.buffer import Group, GroupBuffer
from gagpo.collecting.collector import Collection, Collector, usable
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.collecting.sampling_thread import SamplingThread
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data.episodes import Episode
from gagpo.envs.pool import Pool
from gagpo.model.weights import named_tensors
from gagpo.settings import RunSettings


class AheadCollector(Collector):
    """Takes groups from a thread that samples while the trainer updates.

    The thread begins with the first :meth:`collect` and ends with :meth:`close`.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers):
        super().__init__(settings, schedule, controllers)
        self.buffer = GroupBuffer(settings, schedule.task_at)
        self._thread: SamplingThread | None = None
        self._carried: list[Group] = []  # opened before the last update, for older weights
        self._since = 0.0
        self._counted = Clock()  # the thread's clock at the end of the last collection

    def collect(self, agent: Agent, pool: Pool, iteration: int) -> Collection:
        """``rollout.tasks`` groups, as :meth:`Collector.collect`. A round of dynamic sampling is a batch of groups."""
        begun = time.perf_counter()
        thread = self._thread or self._begin(agent, pool, iteration)
        wanted, found = self.settings.rollout.tasks, Collection()
        self.controllers.begin()
        looked = kept = 0
        last: list[list[Episode]] = []
        while kept < wanted and looked < wanted * self.controllers.sampling_rounds:
            group = self._next(thread, wanted - kept)
            played = self._placed([replace(episode, group=looked) for episode in group.played()])
            looked += 1
            found.played += played
            last = [*last, played][-wanted:]
            chosen = self._kept(played)
            kept += bool(chosen)
            found.episodes += chosen
            if not chosen and not self.settings.rollout.deterministic:
                self._open(1)
        found.episodes = found.episodes or usable([episode for played in last for episode in played])
        found.rounds = -(-looked // wanted)
        with self.buffer.changed:
            found.stale = self.buffer.dropped()
        found.clock = self._spent(thread)
        found.stats = {**staleness(found.episodes, iteration), "stale_episodes": float(len(found.stale))}
        found.stats["seconds_waited"] = time.perf_counter() - begun
        return found

    def _begin(self, agent: Agent, pool: Pool, iteration: int) -> SamplingThread:
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(f"rollout.ahead requires a language agent, got {type(agent).__name__}")
        self.buffer.iteration = iteration
        self.buffer.open(self.buffer.room)
        self._since, self._thread = time.perf_counter(), SamplingThread(agent, pool, self.buffer)
        self._thread.start()
        return self._thread

    def _next(self, thread: SamplingThread, missing: int) -> Group:
        """Wait for the next complete group. If no group is open, open as many as the batch is missing."""
        if not self.buffer.groups:
            self._open(missing)
        group = thread.wait_for(self.buffer.take)
        assert group is not None
        return group

    def _open(self, count: int) -> None:
        with self.buffer.changed:
            self.buffer.open(count)
            self.buffer.changed.notify_all()

    def _spent(self, thread: SamplingThread) -> Clock:
        """The time since the last collection, and the parts that the thread has spent on episodes."""
        now, then = replace(thread.clock, total=time.perf_counter()), self._counted
        self._counted, since, self._since = now, self._since, now.total
        return Clock(now.environment - then.environment, now.generation - then.generation, now.total - since)

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """Publish a copy of the new weights at the end; the engine samples during the update."""
        yield
        assert self._thread is not None
        self._carried = list(self.buffer.groups)
        self._thread.publish(named_tensors(model, not engine.shares_weights), iteration)

    def paused(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which the caller can use pool and engine, which has the newest weights."""
        return self._thread.rest() if self._thread else nullcontext()

    def close(self) -> None:
        """End the thread within seconds; unfinished episodes are lost."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        with self.buffer.changed:
            return {**super().state_dict(), "position": self.buffer.position, "due": self.buffer.places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.buffer.position, self.buffer.due = int(state["position"]), [int(place) for place in state["due"]]

    def sampled(self, seconds: float | None) -> bytes | None:
        """With ``rollout.deterministic`` the groups that older weights sample.

        Groups that are not complete after ``seconds`` are left out; newer weights will sample them.
        """
        if not self.settings.rollout.deterministic:
            return None
        if self._thread is not None:
            with suppress(Exception) if seconds is not None else nullcontext():  # then take those that are complete
                self._thread.wait_for(lambda: all(group.complete for group in self._carried), seconds)
        known = [group for group in self._carried if group.complete]
        groups = [[group.place, group.version, len(group.episodes)] for group in known]
        return packed([episode for group in known for episode in group.played()], {"groups": groups})

    def load_sampled(self, data: bytes) -> None:
        """Restore what :meth:`sampled` returned, after :meth:`load_state_dict`."""
        episodes, about = unpacked(data)
        first = 0
        for place, version, count in about["groups"]:
            own = episodes[first : first + count]
            if len(own) != count or place not in self.buffer.due:
                raise ValueError(f"the group of place {place} is incomplete or has been trained on")
            self.buffer.restore(place, version, own)
            first += count
        self._carried = list(self.buffer.groups)


def staleness(episodes: Sequence[Episode], iteration: int) -> dict[str, float]:
    """Updates between the weights of each turn and ``iteration``, as metrics."""
    behind = [iteration - turn.version for episode in episodes for turn in episode.turns if turn.version is not None]
    return {"staleness_mean": float(np.mean(behind)) if behind else 0.0, "staleness_max": float(max(behind, default=0))}
