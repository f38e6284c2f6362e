"""The contract of a pool, and the bookkeeping of its slots.

The contract: **every reset and step is answered by exactly one event.** When a worker (a process or a server) is lost,
its episodes start over in its replacement. An environment that raises an error or returns an invalid value makes only
its own episode start over. The event is then ``restarted`` and contains the first observation of the same task and
seed: discard the episode's turns so far. An episode that broke more than ``max_restarts`` times ends with ``failed``.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info
from gagpo.envs.pool.wire import Request

Argument = str | int | None  # of a request
MAX_TURNS = 1_000
"""Turns after which the episode of an environment that declares no turn limit is truncated."""
_COALESCE_SECONDS = 0.001  # so that a caller who waits for many answers is not woken for each


class Event(NamedTuple):
    """The answer to one reset or step.

    slot: the slot of the request.
    kind: ``reset`` (the first observation), ``step``, ``restarted`` (a first observation again: discard the turns so
        far) or ``failed`` (the episode is over and the slot is free).
    reward: of the step; 0 at the beginning of an episode.
    info: see :class:`gagpo.envs.base.TextEnv`.
    error: what broke, for ``restarted`` and ``failed``; otherwise empty.
    """

    slot: int
    kind: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info
    error: str = ""


@dataclass
class Counters:
    """What a pool has counted.

    crashes: workers that died or sent invalid data.
    hangs: workers that missed a deadline.
    errors: environments that raised an error or returned an invalid value.
    restarts: episodes started over.
    failures: episodes given up.
    steps: valid answers to a step.
    resets: valid answers to a reset.
    """

    crashes: int = 0
    hangs: int = 0
    errors: int = 0
    restarts: int = 0
    failures: int = 0
    steps: int = 0
    resets: int = 0


@dataclass(eq=False, slots=True)
class SlotEpisode:
    """An episode in a slot. Each has a new number, so a late answer to the slot's previous episode is dropped.

    reset_arguments: task and seed, to start it and to start it over.
    pending: the operation that is not answered yet, '' for none.
    awaits_action: the caller may step.
    turns: steps answered.
    failures: how often it broke.
    error: why it starts over: at once if an operation is pending, with the next step if it awaits an action.
    """

    number: int
    slot: int
    reset_arguments: tuple[Argument, ...]
    worker: Worker
    pending: str = ""
    awaits_action: bool = False
    turns: int = 0
    failures: int = 0
    error: str = ""


class Worker:
    """A worker or server that steps the episodes assigned to it."""

    def __init__(self) -> None:
        self.episodes: dict[int, SlotEpisode] = {}  # by their number
        self.outbox: list[Request] = []  # requests not yet sent

    def request(self, episode: SlotEpisode, operation: str, *arguments: Argument) -> None:
        """Queue a request for the next flush."""
        episode.pending = operation
        self.outbox.append((operation, episode.number, *arguments))


class Pool(Protocol):
    """Steps environments: in worker processes, in sessions of a server, or in several pools combined."""

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        """Start ``task`` in ``slot`` (any non-negative int), ending whatever runs there; answered by one event."""

    def step(self, slot: int, action: str) -> None:
        """Carry out ``action`` in ``slot``; answered by one event.

        Raises ValueError if no episode runs there or its last request is not answered yet.
        """

    def release(self, slot: int) -> None:
        """End whatever runs in ``slot``; its environment is reused by another slot."""

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        """Wait for ``at_least`` events, and return all that have come.

        Returns fewer after ``timeout`` seconds (None for no limit), or when no request is outstanding. A larger
        ``at_least`` costs latency and saves wake-ups.
        """

    def flush(self) -> None:
        """Send all requests now, so that they run while the caller does something else."""

    def close(self) -> None:
        """Close all environments and end all processes; idempotent."""

    @property
    def counters(self) -> Counters: ...

    @property
    def outstanding(self) -> int:
        """Number of requests that are not answered yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class BasePool(Pool):
    """The bookkeeping of a pool; a subclass sends requests to workers and delivers answers. For one thread only.

    max_restarts: how often one episode may start over.
    """

    def __init__(self, workers: Sequence[Worker], max_restarts: int = 0):
        self._counters = Counters()
        self._workers = workers
        self._max_restarts = max_restarts
        self._numbers = itertools.count()
        self._episode_by_slot: dict[int, SlotEpisode] = {}  # by slot
        self._events: list[Event] = []
        self._outstanding = 0  # requests without an event
        self._is_woken = False  # the current wait ends early
        self._is_closed = False

    # Requests ---------------------------------------------------------------------------------------------------------

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        self._require_open()
        if slot < 0:
            raise InvalidArgument(f"a slot must be a non-negative number, got {slot}", key="slot")
        worker = self._choose_worker(self._episode_by_slot.get(slot))
        self.release(slot)
        episode = SlotEpisode(next(self._numbers), slot, (task, seed), worker)
        self._episode_by_slot[slot] = worker.episodes[episode.number] = episode
        self._outstanding += 1
        worker.request(episode, "reset", *episode.reset_arguments)

    def step(self, slot: int, action: str) -> None:
        episode = self._awaiting_action(slot)
        if type(action) is not str:
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        episode.awaits_action = False
        self._outstanding += 1
        if episode.error:  # its worker was lost while it awaited this action: the answer is its new beginning
            episode.pending = "step"
            self._start_over(episode, episode.error)
            return
        episode.worker.request(episode, "step", action)

    def release(self, slot: int) -> None:
        episode = self._episode_by_slot.pop(slot, None)
        if episode is not None:
            self._outstanding -= bool(episode.pending)
            del episode.worker.episodes[episode.number]
            episode.worker.outbox.append(("release", episode.number))

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        self._require_open()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            # One round: send the requests, take the answers; repeat until there are enough.
            self.flush()
            self._collect(deadline, block=len(self._events) < at_least and self._outstanding > 0)
            if len(self._events) >= at_least or not self._outstanding or self._is_woken or time.monotonic() >= deadline:
                self._is_woken = False
                self.flush()  # send the resets of episodes that start over, which _collect queued
                events = self._events
                self._events = []
                return events
            if at_least - len(self._events) > 1:
                time.sleep(_COALESCE_SECONDS)

    def close(self) -> None:
        self._is_closed = True
        self._episode_by_slot.clear()
        self._events.clear()
        self._outstanding = 0

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def _collect(self, deadline: float, block: bool) -> None:
        """Deliver the answers that have come, and replace workers that died or missed a deadline.

        deadline: in ``time.monotonic``; may be infinite.
        block: wait for an answer, at most until the deadline.
        """

    def _choose_worker(self, previous: SlotEpisode | None) -> Worker:
        """The worker of a new episode. previous: the episode that the slot still holds."""
        if previous:  # the same worker, which has an environment that the new episode can reuse
            return previous.worker
        return min(self._workers, key=lambda worker: len(worker.episodes))

    def _declares_limit(self) -> bool:
        """Whether the environment itself limits the turns of an episode."""
        return False

    # Answers ----------------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._is_closed:
            raise InvalidArgument("the pool is closed")

    def _awaiting_action(self, slot: int) -> SlotEpisode:
        """The episode in ``slot``; ValueError unless it waits for an action."""
        episode = self._episode_by_slot.get(slot)
        if episode is not None and episode.awaits_action:
            return episode
        self._require_open()
        if episode is None:
            raise InvalidArgument(
                f"slot {slot} holds no episode that waits for an action", advice="reset it before stepping"
            )
        if episode.pending:
            raise InvalidArgument(
                f"slot {slot} has not answered its last request", advice="wait for its event before stepping"
            )
        raise InvalidArgument(f"the episode in slot {slot} is over", advice="reset it before stepping")

    def _deliver(self, episode: SlotEpisode, event: Event) -> None:
        """Answer the pending request; if the episode starts over, the event is ``restarted``."""
        if event.kind == "failed":
            self.counters.failures += 1
            self._events.append(event)
            self.release(episode.slot)
            return
        if event.kind == "step":
            self.counters.steps += 1
            episode.turns += 1
            if episode.turns >= MAX_TURNS and not event.terminated and not self._declares_limit():
                event = event._replace(truncated=True)
            episode.awaits_action = not (event.terminated or event.truncated)
        else:
            self.counters.resets += 1
            if event.kind == "restarted":  # by a worker that is a pool itself: count what it did not report before
                self.counters.restarts += not episode.error
            elif episode.error:
                event = event._replace(kind="restarted", error=episode.error)
            episode.awaits_action = True
            episode.turns = 0
            episode.error = ""
        episode.pending = ""
        self._outstanding -= 1
        self._events.append(event)

    def _start_over(self, episode: SlotEpisode, error: str) -> None:
        """Restart the episode, or answer ``failed`` if it broke too often."""
        if episode.failures > self._max_restarts:
            self._deliver(episode, Event(episode.slot, "failed", "", 0.0, False, False, {}, error))
            return
        self.counters.restarts += 1
        episode.error = error
        episode.worker.request(episode, "reset", *episode.reset_arguments)

    def _start_all_over(self, worker: Worker, error: str, suspects: Collection[SlotEpisode] = ()) -> None:
        """Start the episodes of a lost ``worker`` over.

        suspects: the episodes that may have broken it. Only their failures are counted, so that an episode is not given
            up for the faults of its neighbours.
        """
        worker.outbox.clear()
        for episode in list(worker.episodes.values()):
            is_suspect = episode in suspects
            episode.failures += is_suspect
            if episode.pending == "reset" and not is_suspect:
                # It never began, so the caller has no turns to discard: its answer is an ordinary ``reset``.
                worker.request(episode, "reset", *episode.reset_arguments)
            elif episode.pending:
                self._start_over(episode, error)
            elif episode.awaits_action:  # the caller has all its answers: report the loss with the next one
                episode.error = error
