"""Verifier processes with hard deadlines.

A comparison that needs computer algebra is sent to a process of its own, which is a worker of an environment pool
(:mod:`gagpo.envs.pool`): supervised, killed at its deadline, replaced by a fork of one that has everything loaded, and
ended with its owner, even when the owner is killed. A hostile answer costs its own time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.math.verify.compare import Reason
from gagpo.envs.math.verify.extract import MAX_ANSWER
from gagpo.envs.pool import EnvironmentBroken
from gagpo.envs.pool.shared_pool import PoolClosed, SharedPool

_CACHED = 65_536
_WORKER = "gagpo.envs.math.verify.worker:gagpo-internal/Verifier-v0"


class VerifierFailed(GagpoError, RuntimeError):
    """A verifier process does not start; the message says why."""


class VerifyPool:
    """At most ``workers`` verifier processes; ``seconds`` of processor time and ``deadline`` seconds of wall time each.

    Thread-safe, usable as a context manager, and usable again after ``close()``. Processor time, which each process
    measures for itself, decides what is a timeout on a machine of any load. The deadline is the guarantee that nothing
    waits for ever; a comparison that misses it is tried once more with no other beside it, and a timeout that the wall
    clock decided in the end is not remembered. All other verdicts are.
    """

    def __init__(self, workers: int = 1, seconds: float = 2.0, deadline: float = 20.0) -> None:
        if workers < 1:
            raise InvalidArgument(f"workers must be at least 1, got {workers}")
        if not 0 < seconds <= deadline:
            raise InvalidArgument(f"need 0 < seconds <= deadline, got seconds={seconds} and deadline={deadline}")
        self.workers, self.seconds, self.deadline = workers, seconds, deadline
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._pool: SharedPool | None = None  # started by the first comparison
        self._slots = threading.Semaphore(self.workers)
        self._alone = threading.Lock()
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Reason] = OrderedDict()

    def compare(self, gold: str, prediction: str) -> Reason:
        """``match``, ``mismatch``, ``unparsable`` or ``timeout``."""
        if len(prediction) > MAX_ANSWER or len(gold) > MAX_ANSWER:
            return "unparsable"
        if os.getpid() != self._owner:
            self._reset()  # a forked copy: the processes are its parent's
        key = (gold, prediction)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        request = {"gold": gold, "prediction": prediction, "seconds": self.seconds}
        reason = self._decide(json.dumps(request))
        if reason is None:
            return "timeout"
        with self._lock:
            self._known[key] = reason
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return reason

    def compare_many(self, pairs: Sequence[tuple[str, str]]) -> list[Reason]:
        """The verdicts of many (gold, prediction) pairs, in their order, on all workers at once."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda pair: self.compare(*pair), pairs))

    def _decide(self, request: str) -> Reason | None:
        """The verdict, or None where twice no answer came although there was processor time left."""
        with self._slots:
            reason = self._ask(request)
        if reason is None:  # a process also misses its deadline, or ends, for reasons that lie outside the answer
            with self._every_slot():
                reason = self._ask(request)
        return reason

    @contextlib.contextmanager
    def _every_slot(self) -> Iterator[None]:
        with self._alone, contextlib.ExitStack() as held:
            for _ in range(self.workers):
                held.enter_context(self._slots)
            yield

    def _ask(self, request: str) -> Reason | None:
        try:
            with self._lock:
                if self._pool is None or self._pool.closed:
                    self._pool = SharedPool(_WORKER, workers=self.workers, reset_deadline=self.deadline, max_restarts=0)
                    weakref.finalize(self, self._pool.close)
                pool = self._pool
            slot = pool.open()
            try:
                event = pool.reset(slot, request).result()
            finally:
                pool.release(slot)
        except (EnvironmentBroken, PoolClosed) as error:
            raise VerifierFailed(f"a verifier process does not start: {error}") from None
        if event.kind == "reset":
            return cast(Reason, event.observation)
        # The system ends a process that has used up its processor time where the interpreter cannot.
        return "timeout" if "SIGXCPU" in event.error else None

    @property
    def processes(self) -> list[int]:
        """Process ids of the verifier processes that are running now."""
        return [] if self._pool is None else self._pool.processes

    def close(self) -> None:
        """End every process, once the comparisons under way have ended. Safe to call twice; a later comparison starts
        new ones."""
        if os.getpid() != self._owner:
            return
        with self._every_slot():
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.close()

    def __enter__(self) -> VerifyPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared = VerifyPool()
_users = 0


def acquire_shared_pool() -> VerifyPool:
    """The pool of this process, one worker wide: what environments use. Every use ends with its release."""
    global _users
    _users += 1
    return _shared


def release_shared_pool() -> None:
    """End one use of the process-wide pool; its processes end with the last one."""
    global _users
    _users -= 1
    if _users == 0:
        _shared.close()
