"""Collecting with ``rollout.ahead``: one thread samples coming batches while the trainer updates the weights::

      trainer                            GroupBuffer                        sampling thread
      -------                            -----------                        ---------------
      publish(weights, version 2)
        |  opens places 8 to 11  ---->   place 8   version 2   pending
        |                                place 9   version 2   pending
        |                                ...
        |                                place 4   version 1   pending ---> load weights 1
        |                                                                     |  sample with engine and pool
      collect()                                                               v
        |  takes complete groups <----   place 5   version 1   complete <--- deliver
        v
      credit, update, publish(weights, version 3), ...

An update takes a batch of groups and opens as many. With ``rollout.deterministic`` a group is sampled with the weights
of the update that opened it. So its weights depend only on the number of the update, and a run can be repeated
bit-identically. A checkpoint stores the groups that older weights have sampled.

Without deterministic (version None) episodes start as soon as there is room, and new weights are loaded between turns.
Episodes older than ``rollout.max_staleness`` are dropped and sampled again. A checkpoint stores the places to sample
again.

Who waits for whom: the trainer waits in ``collect`` for a complete group, in ``paused`` for the thread to rest, and in
``sampled`` for the groups of older weights. The thread waits for open groups and weights, which ``publish`` brings, and
while it rests for the end of ``paused``. Each wait ends within ``TICK`` seconds if the other side has failed or the run
is being ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

import numpy as np
import torch

from gagpo.agents.agent import Agent, LanguageAgent
from gagpo.agents.engines.base import Engine
from gagpo.agents.rollout import Clock
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.buffer import Group, GroupBuffer
from gagpo.collecting.collector import BatchBuilder, Collection, OnEpisode, ignore
from gagpo.collecting.packing import packed, unpacked
from gagpo.collecting.sampling_thread import SamplingThread
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.data import Episode
from gagpo.envs.pool import Pool
from gagpo.model.weights import NamedTensor, named_tensors
from gagpo.settings import RunSettings


class AheadCollector:
    """A :class:`gagpo.collecting.collector.Collector` that takes groups from a thread.

    The thread starts with the first :meth:`collect` and ends with :meth:`close`.
    """

    def __init__(self, settings: RunSettings, schedule: Schedule, controllers: Controllers):
        self.settings = settings
        self.controllers = controllers
        self.buffer = GroupBuffer(settings, schedule.task_at)
        self._thread: SamplingThread | None = None
        self._older_groups: list[Group] = []  # opened before the last update, for older weights
        self._collected_at = 0.0  # when the last collection ended
        self._last_clock = Clock()  # the thread's clock at that time

    def collect(self, agent: Agent, pool: Pool, iteration: int, on_episode: OnEpisode = ignore) -> Collection:
        started = time.perf_counter()
        thread = self._thread or self._start(agent, pool, iteration)
        batch = BatchBuilder(self.settings, self.controllers)
        while not batch.finished:
            group = self._next_group(thread, batch.missing)
            episodes = group.finished()
            trainable = batch.add([episodes])
            for episode in episodes:
                on_episode(episode)
            if not trainable and not self.settings.rollout.deterministic:
                self._open(1)  # with deterministic the next update opens further groups, so that versions repeat
        collection = batch.build()
        with self.buffer.changed:
            collection.stale_episodes = self.buffer.dropped()
        collection.clock = self._time_spent(thread)
        collection.stats = {
            **staleness(collection.episodes, iteration),
            "stale_episodes": float(len(collection.stale_episodes)),
            "seconds_waited": time.perf_counter() - started,
        }
        return collection

    def _start(self, agent: Agent, pool: Pool, iteration: int) -> SamplingThread:
        if not isinstance(agent, LanguageAgent):
            raise InvalidArgument(
                f"rollout.ahead requires a language agent, got {type(agent).__name__}", key="rollout.ahead"
            )
        self.buffer.iteration = iteration
        self.buffer.open(self.buffer.room)
        self._collected_at = time.perf_counter()
        self._thread = SamplingThread(agent, pool, self.buffer)
        self._thread.start()
        return self._thread

    def _next_group(self, thread: SamplingThread, missing: int) -> Group:
        """Wait for the next complete group. If no group is open, open as many as the batch is missing."""
        if not self.buffer.groups:
            self._open(missing)
        group = thread.wait_for(self.buffer.take)
        assert group is not None
        return group

    def _open(self, count: int) -> None:
        with self.buffer.changed:
            self.buffer.open(count)
            self.buffer.changed.notify_all()  # the thread may wait for an episode to begin

    def _time_spent(self, thread: SamplingThread) -> Clock:
        """The time since the last collection, and the parts that the thread has spent on episodes."""
        now = time.perf_counter()
        clock = replace(thread.clock)  # a copy, because the thread goes on
        environment = clock.environment - self._last_clock.environment
        generation = clock.generation - self._last_clock.generation
        spent = Clock(environment, generation, now - self._collected_at)
        self._last_clock = clock
        self._collected_at = now
        return spent

    @contextmanager
    def updating(self, engine: Engine, model: torch.nn.Module, iteration: int) -> Iterator[None]:
        """Publish a copy of the new weights at the end; the engine samples during the update."""
        yield
        tensors = named_tensors(model, not engine.shares_weights)
        # Clones: the thread loads them while the next update already changes the model.
        self.publish([(name, tensor.detach().clone()) for name, tensor in tensors], iteration)

    def publish(self, copies: Sequence[NamedTensor], iteration: int) -> None:
        """Hand copies of the weights of ``iteration`` to the thread."""
        assert self._thread is not None
        self._older_groups = list(self.buffer.groups)
        self._thread.publish(copies, iteration)

    def paused(self) -> AbstractContextManager[None]:
        return self._thread.rest() if self._thread else nullcontext()

    def close(self) -> None:
        """End the thread within seconds; unfinished episodes are lost."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def sampled(self, seconds: float | None) -> bytes | None:
        """With ``rollout.deterministic`` the groups that older weights sample.

        Groups that are not complete after ``seconds`` are left out; newer weights will sample them.
        """
        if not self.settings.rollout.deterministic:
            return None
        if self._thread is not None:
            # An interrupted run saves what is complete, whatever became of the thread.
            with suppress(Exception) if seconds is not None else nullcontext():
                self._thread.wait_for(lambda: all(group.complete for group in self._older_groups), seconds)
        groups = [group for group in self._older_groups if group.complete]
        headers = [[group.place, group.version, len(group.episodes)] for group in groups]
        return packed([episode for group in groups for episode in group.finished()], {"groups": headers})

    def load_sampled(self, data: bytes) -> None:
        episodes, header = unpacked(data)
        start = 0
        for index, version, count in header["groups"]:
            group_episodes = episodes[start : start + count]
            if len(group_episodes) != count or index not in self.buffer.due:
                raise ValueError(f"the group of place {index} is incomplete or has been trained on")
            self.buffer.restore(index, version, group_episodes)
            start += count
        self._older_groups = list(self.buffer.groups)


def staleness(episodes: Sequence[Episode], iteration: int) -> dict[str, float]:
    """Updates between the weights of each turn and ``iteration``, as metrics."""
    behind = [iteration - turn.version for episode in episodes for turn in episode.turns if turn.version is not None]
    return {"staleness_mean": float(np.mean(behind)) if behind else 0.0, "staleness_max": float(max(behind, default=0))}
