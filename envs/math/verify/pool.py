"""Verifier processes with hard deadlines.

A comparison that needs computer algebra runs in a child process, which is killed at its deadline and replaced, so a
hostile answer does not delay others.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from gagpo.base.child import Child, ChildEnded, ChildLate, Shared
from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.verify.compare import Reason
from gagpo.envs.math.verify.extract import MAX_ANSWER

MEMORY = 4 * 2**30
"""Address space of a verifier process, in bytes."""
_CACHE_SIZE = 65_536
_TARGET = "gagpo.envs.math.verify.worker:main"
_BARE = ("gagpo", "gagpo.envs")  # needs no gymnasium


class VerifyPool:
    """Compares answers in verifier processes.

    Thread-safe, a context manager, and usable again after ``close()``. Timeouts count CPU time, which each process
    measures itself, so verdicts do not depend on the machine's load. A comparison that misses its wall-clock deadline
    is repeated once while no other runs. Verdicts are cached, except for timeouts by wall time.

    workers: maximum number of processes, started when needed.
    seconds: CPU time of one comparison.
    deadline: wall time of one comparison, in seconds.
    """

    def __init__(self, workers: int = 1, seconds: float = 2.0, deadline: float = 20.0) -> None:
        if workers < 1:
            raise InvalidArgument(f"workers must be at least 1, got {workers}", key="workers")
        if not 0 < seconds <= deadline:
            raise InvalidArgument(f"need 0 < seconds <= deadline, got seconds={seconds} and deadline={deadline}")
        self.workers = workers
        self.seconds = seconds
        self.deadline = deadline
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._children = [
            Child(_TARGET, name="a verifier process", memory=MEMORY, bare=_BARE) for _ in range(self.workers)
        ]
        self._idle: queue.LifoQueue[Child] = queue.LifoQueue()
        for child in self._children:
            self._idle.put(child)
        self._reserving = threading.Lock()  # held while processes are taken, so two reservations cannot deadlock
        self._lock = threading.Lock()  # guards the cache of verdicts
        self._verdicts: OrderedDict[tuple[str, str], Reason] = OrderedDict()

    def compare(self, gold: str, prediction: str) -> Reason:
        """``match``, ``mismatch``, ``unparsable`` or ``timeout``; raises ChildFailed if no process starts."""
        if len(prediction) > MAX_ANSWER or len(gold) > MAX_ANSWER:
            return "unparsable"
        if os.getpid() != self._owner:
            self._reset()  # a forked copy: the processes belong to the parent
        key = (gold, prediction)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        reason = self._decide((gold, prediction, self.seconds))
        if reason is None:
            return "timeout"
        with self._lock:
            self._verdicts[key] = reason
            if len(self._verdicts) > _CACHE_SIZE:
                self._verdicts.popitem(last=False)
        return reason

    def _decide(self, request: tuple[str, str, float]) -> Reason | None:
        """The verdict, or None if two attempts ended without an answer although CPU time was left."""
        with self._reserve(1) as (child,):
            reason = self._ask(child, request)
        if reason is None:  # perhaps the answer was not the cause: try again, alone
            with self._reserve(self.workers) as children:
                reason = self._ask(children[0], request)
        return reason

    @contextmanager
    def _reserve(self, count: int) -> Iterator[list[Child]]:
        # A reservation of all processes waits for the comparisons in progress, and later reservations wait for it.
        # Every comparison ends at its deadline at the latest, which bounds the wait.
        with self._reserving:
            children = [self._idle.get() for _ in range(count)]
        try:
            yield children
        finally:
            for child in children:
                self._idle.put(child)

    def _ask(self, child: Child, request: tuple[str, str, float]) -> Reason | None:
        try:
            return cast(Reason, child.ask(request, self.deadline))
        except ChildEnded as ended:
            # The system kills a process over its CPU limit when the interpreter cannot react.
            return "timeout" if ended.status == -signal.SIGXCPU else None
        except ChildLate:
            return None

    @property
    def processes(self) -> list[int]:
        """Ids of the running processes."""
        return [child.process for child in self._children if child.process is not None]

    def close(self) -> None:
        """End all processes after their current comparisons. Safe to call twice; later comparisons start new ones."""
        if os.getpid() == self._owner:
            with self._reserve(self.workers) as children:
                for child in children:
                    child.close()

    def __enter__(self) -> VerifyPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


VERIFIERS = Shared(VerifyPool())
"""The pool that all environments of this process share."""
