"""The contract of a pool, and the bookkeeping of its slots.

The contract: **every reset and step is answered by exactly one event.** When a holder (a worker process or a
server) is lost, its episodes start over in its replacement. An environment that raises an error or returns an invalid
value makes only its own episode start over. The event is then ``restarted`` and holds the first observation of the same
task and seed: discard the episode's turns so far. An episode that broke more than
``max_restarts`` times ends with ``failed``.
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
class Assignment:
    """An episode in a slot. Each has a new number, so late answers to an old one are dropped.

    first: the arguments of the reset that begins it.
    """

    number: int
    slot: int
    first: tuple[Argument, ...]
    holder: Holder
    pending: str = ""  # the operation that is not answered yet
    live: bool = False  # the caller may step
    turns: int = 0  # steps answered
    charges: int = 0  # how often it broke
    error: str = ""  # why it starts over: now if it is pending, with its next step if it is live


class Holder:
    """A worker or server that steps the episodes assigned to it."""

    def __init__(self) -> None:
        self.held: dict[int, Assignment] = {}  # by number
        self.outbox: list[Request] = []  # requests not yet sent

    def request(self, assignment: Assignment, operation: str, *arguments: Argument) -> None:
        """Queue a request for the next flush."""
        assignment.pending = operation
        self.outbox.append((operation, assignment.number, *arguments))


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
    """The bookkeeping of a pool; a subclass sends requests to holders and delivers answers. For one thread only.

    max_restarts: how often one episode may start over.
    """

    def __init__(self, holders: Sequence[Holder], max_restarts: int = 0):
        self._counters = Counters()
        self._holders = holders
        self._max_restarts = max_restarts
        self._numbers = itertools.count()
        self._assignments: dict[int, Assignment] = {}  # by slot
        self._ready: list[Event] = []
        self._outstanding = 0  # requests without an event
        self._woken = False  # the current wait ends early
        self._closed = False

    # Requests ---------------------------------------------------------------------------------------------------------

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        self._require_open()
        if slot < 0:
            raise InvalidArgument(f"a slot must be a non-negative number, got {slot}")
        old = self._assignments.get(slot)
        holder = old.holder if old else min(self._holders, key=lambda holder: len(holder.held))
        self.release(slot)
        assignment = Assignment(next(self._numbers), slot, (task, seed), holder)
        self._assignments[slot] = holder.held[assignment.number] = assignment
        self._outstanding += 1
        holder.request(assignment, "reset", *assignment.first)

    def step(self, slot: int, action: str) -> None:
        assignment = self._waiting(slot)
        if type(action) is not str:
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        assignment.live = False
        self._outstanding += 1
        if assignment.error:
            assignment.pending = "step"
            self._start_over(assignment, assignment.error)
            return
        assignment.holder.request(assignment, "step", action)

    def release(self, slot: int) -> None:
        assignment = self._assignments.pop(slot, None)
        if assignment is not None:
            self._outstanding -= bool(assignment.pending)
            del assignment.holder.held[assignment.number]
            assignment.holder.outbox.append(("release", assignment.number))

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        self._require_open()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            # One round: send the requests, take the answers; repeat until there are enough.
            self.flush()
            self._collect(end, block=len(self._ready) < at_least and self._outstanding > 0)
            if len(self._ready) >= at_least or not self._outstanding or self._woken or time.monotonic() >= end:
                self._woken = False
                self.flush()  # episodes that start over
                events, self._ready = self._ready, []
                return events
            if at_least - len(self._ready) > 1:
                time.sleep(_COALESCE_SECONDS)

    def close(self) -> None:
        self._closed = True
        self._assignments.clear()
        self._ready.clear()
        self._outstanding = 0

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def _collect(self, end: float, block: bool) -> None:
        """Deliver the answers that have come, and replace holders that died or missed a deadline.

        block: wait for an answer, at most until ``end`` (``time.monotonic``).
        """

    def _declares_limit(self) -> bool:
        """Whether the environment itself limits the turns of an episode."""
        return False

    # Answers ----------------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the pool is closed")

    def _waiting(self, slot: int) -> Assignment:
        """The episode in ``slot``; ValueError unless it waits for an action."""
        assignment = self._assignments.get(slot)
        if assignment is not None and assignment.live:
            return assignment
        self._require_open()
        if assignment is None:
            raise InvalidArgument(f"slot {slot} holds no episode that waits for an action: reset it before stepping")
        if assignment.pending:
            raise InvalidArgument(f"slot {slot} has not answered its last request: wait for its event before stepping")
        raise InvalidArgument(f"the episode in slot {slot} is over: reset it before stepping")

    def _deliver(self, assignment: Assignment, event: Event) -> None:
        """Answer the pending request; if the episode starts over, the event is ``restarted``."""
        if event.kind == "failed":
            self.counters.failures += 1
            self._ready.append(event)
            self.release(assignment.slot)
            return
        if event.kind == "step":
            self.counters.steps += 1
            assignment.turns += 1
            if assignment.turns >= MAX_TURNS and not event.terminated and not self._declares_limit():
                event = event._replace(truncated=True)
            assignment.live = not (event.terminated or event.truncated)
        else:
            self.counters.resets += 1
            if event.kind == "restarted":  # by a holder that is a pool itself
                self.counters.restarts += not assignment.error
            elif assignment.error:
                event = event._replace(kind="restarted", error=assignment.error)
            assignment.live, assignment.turns = True, 0
            assignment.error = ""
        assignment.pending = ""
        self._outstanding -= 1
        self._ready.append(event)

    def _start_over(self, assignment: Assignment, error: str) -> None:
        """Restart the episode, or answer ``failed`` if it broke too often."""
        if assignment.charges > self._max_restarts:
            self._deliver(assignment, Event(assignment.slot, "failed", "", 0.0, False, False, {}, error))
            return
        self.counters.restarts += 1
        assignment.error = error
        assignment.holder.request(assignment, "reset", *assignment.first)

    def _start_all_over(self, holder: Holder, error: str, charged: Collection[Assignment] = ()) -> None:
        """Start the episodes of a lost ``holder`` over; those ``charged`` may have broken it."""
        holder.outbox.clear()
        for assignment in list(holder.held.values()):
            at_fault = assignment in charged
            assignment.charges += at_fault
            if assignment.pending == "reset" and not at_fault:
                holder.request(assignment, "reset", *assignment.first)  # not begun: nothing to start over
            elif assignment.pending:
                self._start_over(assignment, error)
            elif assignment.live:
                assignment.error = error
