"""Verifier processes with hard deadlines.

A comparison that needs computer algebra is sent to a process of its own kind and given a wall-clock deadline. When it
passes, that process is killed and another takes its place: a hostile answer costs its own deadline and nothing else.
Processes are started when first needed and end with their owner, even when the owner is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gagpo
from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.math.verify.compare import Policy
from gagpo.envs.math.verify.extract import MAX_ANSWER
from gagpo.envs.math.verify.verifier import Reason

START_SECONDS = 60.0
"""How long a verifier process may take to import its libraries."""
_CACHED = 65_536
_MODULE = "gagpo.envs.math.verify.worker"


class VerifierFailed(GagpoError, RuntimeError):
    """A verifier process does not start; the message holds the end of what it printed."""


class _Died(Exception):
    """The process ended, or its deadline passed."""


class _Worker:
    """One verifier process and the two pipes to it."""

    def __init__(self) -> None:
        root = str(Path(gagpo.__path__[0]).parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # A fixed hash seed: the order of sets, which SymPy iterates over, is then the same in every process.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._buffer = b""
        self.generation = 0
        try:
            self._reply(time.monotonic() + START_SECONDS)
        except _Died:
            self.process.kill()
            lines = self.process.stderr.read().decode(errors="replace").strip().splitlines() or ["no message"]
            self.close()
            raise VerifierFailed(f"a verifier process did not start: {lines[-1]}") from None

    def ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send one request and wait until ``deadline`` (monotonic seconds) for its reply."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise _Died from None
        return self._reply(deadline)

    def _reply(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise _Died
            chunk = os.read(self.process.stdout.fileno(), 65_536)
            if not chunk:
                raise _Died
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self, grace: float = 0.0) -> None:
        """End the process: ask by closing its input, then kill; it is reaped in any case."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes; all that a forked child may do with its parent's worker."""
        self._selector.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class VerifyPool:
    """At most ``workers`` verifier processes; ``seconds`` of CPU time and ``deadline`` seconds of wall time each.

    Thread-safe, usable as a context manager, and usable again after ``close()``. The CPU limit decides what is a
    timeout on a machine of any load; the deadline is the guarantee. A comparison is answered once and remembered.
    """

    def __init__(self, workers: int = 1, seconds: float = 2.0, deadline: float = 6.0) -> None:
        if workers < 1:
            raise InvalidArgument(f"workers must be at least 1, got {workers}")
        if not 0 < seconds <= deadline:
            raise InvalidArgument(f"need 0 < seconds <= deadline, got seconds={seconds} and deadline={deadline}")
        self.workers, self.seconds, self.deadline = workers, seconds, deadline
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._generation = 0
        self._slots = threading.BoundedSemaphore(self.workers)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, Policy], Reason] = OrderedDict()

    def compare(self, gold: str, prediction: str, policy: Policy | None = None) -> Reason:
        """``match``, ``mismatch``, ``unparsable`` or ``timeout``."""
        policy = policy or Policy()
        if len(prediction) > MAX_ANSWER or len(gold) > MAX_ANSWER:
            return "unparsable"
        if os.getpid() != self._owner:
            for worker in self._idle:
                worker.let_go()
            self._reset()
        key = (gold, prediction, policy)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        with self._slots:
            reason = self._ask(gold, prediction, policy)
        with self._lock:
            self._known[key] = reason
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return reason

    def compare_many(self, pairs: Sequence[tuple[str, str]], policy: Policy | None = None) -> list[Reason]:
        """The verdicts of many (gold, prediction) pairs, in their order, on all workers at once."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda pair: self.compare(pair[0], pair[1], policy), pairs))

    def _ask(self, gold: str, prediction: str, policy: Policy) -> Reason:
        request = {"gold": gold, "prediction": prediction, "policy": asdict(policy), "seconds": self.seconds}
        # A process can also end for reasons that lie outside the answer; only an answer that ends two is to blame.
        for _ in range(2):
            worker = self._take()
            began = time.monotonic()
            try:
                reply = worker.ask(request, began + self.deadline)
            except _Died:
                late = time.monotonic() - began >= self.deadline
                worker.close()
                with self._lock:
                    self._busy.discard(worker)
                if late or worker.process.returncode == -signal.SIGXCPU:
                    break
            else:
                self._give_back(worker)
                return reply["reason"]
        return "timeout"

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker()
        worker.generation = self._generation
        with self._lock:
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            stays = worker.generation == self._generation
            if stays:
                self._idle.append(worker)
        if not stays:  # the pool was closed in the meantime
            worker.close(grace=1.0)

    @property
    def processes(self) -> list[int]:
        """Process ids of the verifier processes that are running now."""
        with self._lock:
            return [worker.process.pid for worker in (*self._idle, *self._busy)]

    def close(self) -> None:
        """End every process. Safe to call twice; a later comparison starts new ones."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for worker in idle:
            worker.close(grace=1.0)

    def __enter__(self) -> VerifyPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: VerifyPool | None = None
_users = 0


def acquire_shared_pool() -> VerifyPool:
    """The pool of this process, one worker wide: what environments use. Every use ends with its release."""
    global _shared, _users
    if _shared is None:
        _shared = VerifyPool()
        atexit.register(_shared.close)
    _users += 1
    return _shared


def release_shared_pool() -> None:
    """End one use of the process-wide pool; its processes end with the last one."""
    global _users
    _users -= 1
    if _users == 0 and _shared is not None:
        _shared.close()
