"""Many clients of one pool of environments: each holds a slot, one thread talks to the pool."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from gagpo.envs.pool import Event, Pool

_PATIENCE = 0.002  # seconds for which a request may wait while the pool is waited for


class PoolClosed(RuntimeError):
    """The pool was closed, or its environments cannot be built; nothing can be played any more."""


class SharedPool:
    """Lets any thread reset and step episodes of one :class:`gagpo.envs.pool.Pool`, which is for one thread only.

    Every request is answered by a ``concurrent.futures.Future`` of one :class:`gagpo.envs.pool.Event`. Arguments are
    those of the pool. A slot belongs to whoever opened it, until it is released.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None, **options: Any):
        self._settings = (env_id, dict(env_kwargs or {}), options)
        self._requests: queue.SimpleQueue[tuple[str, int, tuple[Any, ...], Future[Event] | None]] = queue.SimpleQueue()
        self._slots = itertools.count()
        self._broken: Exception | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"pool of {env_id}", daemon=True)
        self._thread.start()
        self._started.result()

    def open(self) -> int:
        """A slot of one's own."""
        return next(self._slots)

    def reset(self, slot: int, task: str, seed: int | None = None) -> Future[Event]:
        """Start ``task`` in ``slot``, ending what runs there."""
        return self._ask("reset", slot, task, seed)

    def step(self, slot: int, action: str) -> Future[Event]:
        """Carry out ``action``; the future holds ValueError when no episode runs in ``slot``."""
        return self._ask("step", slot, action)

    def release(self, slot: int) -> None:
        """Give up the slot and whatever runs there; its unanswered request is cancelled."""
        self._requests.put(("release", slot, (), None))

    def close(self) -> None:
        """Close the environments and end their processes; idempotent."""
        self._requests.put(("close", 0, (), None))
        self._thread.join(timeout=30)

    def __enter__(self) -> SharedPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, operation: str, slot: int, *arguments: Any) -> Future[Event]:
        future: Future[Event] = Future()
        if self._broken is not None:
            raise PoolClosed(str(self._broken))
        self._requests.put((operation, slot, arguments, future))
        if not self._thread.is_alive() and not future.done():  # it ended between the two lines above
            future.cancel()
        return future

    # The thread that owns the pool ------------------------------------------------------------------------------------

    def _run(self) -> None:
        env_id, kwargs, options = self._settings
        waiting: dict[int, Future[Event]] = {}
        try:
            with Pool(env_id, kwargs, **options) as pool:
                self._started.set_result(None)
                while self._take_requests(pool, waiting):
                    for event in pool.wait(timeout=_PATIENCE):
                        _answer(waiting.pop(event.slot, None), event)
            self._broken = PoolClosed("the pool is closed")
        except Exception as error:
            self._broken = error
            if not self._started.done():
                self._started.set_exception(error)
        with suppress(queue.Empty):
            while True:
                _, slot, _, future = self._requests.get_nowait()
                if future is not None:
                    waiting[slot] = future
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(PoolClosed(str(self._broken)))

    def _take_requests(self, pool: Pool, waiting: dict[int, Future[Event]]) -> bool:
        """Hand over what was asked, waiting for something while nothing is under way; False to close."""
        with suppress(queue.Empty):
            block = not waiting
            while True:
                operation, slot, arguments, future = self._requests.get(block)
                block = False
                if operation == "close":
                    return False
                if operation == "release":
                    pool.release(slot)
                    if slot in waiting:
                        waiting.pop(slot).cancel()
                    continue
                assert future is not None
                if slot in waiting:
                    future.set_exception(ValueError("the last request is not answered yet"))
                    continue
                try:
                    getattr(pool, operation)(slot, *arguments)
                    waiting[slot] = future
                except (ValueError, TypeError) as error:
                    future.set_exception(error)
        return True


def _answer(future: Future[Event] | None, event: Event) -> None:
    if future is not None and future.set_running_or_notify_cancel():
        future.set_result(event)
