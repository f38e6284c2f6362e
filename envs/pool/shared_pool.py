"""A pool of environments with clients in many threads."""

from __future__ import annotations

import itertools
import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from gagpo.envs.base import Kwargs
from gagpo.envs.pool import Event, WorkerPool


class PoolClosed(RuntimeError):
    """The pool is closed, or its environments cannot be built."""


class SharedPool:
    """A :class:`gagpo.envs.pool.WorkerPool` for many threads: one thread owns it, and clients get futures of events.

    A client puts its request into a queue and wakes the pool's thread, which waits either for requests (nothing is
    outstanding) or for events. When that thread ends, for any reason, it fails every future that is not done, so no
    client waits for ever.

    Arguments are those of the pool. A slot belongs to the client that opened it until it is released.
    """

    def __init__(self, env_id: str, env_kwargs: Kwargs | None = None, **options: Any):
        self._requests: queue.SimpleQueue[tuple[str, int, tuple[Any, ...], Future[Event]]] = queue.SimpleQueue()
        self._slots = itertools.count()
        self._end_reason: BaseException | None = None
        opening: Future[WorkerPool] = Future()
        arguments = (opening, env_id, dict(env_kwargs or {}), options)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"pool of {env_id}", daemon=True)
        self._thread.start()
        self._pool = opening.result()

    def open(self) -> int:
        """A new slot for one client."""
        return next(self._slots)

    def reset(self, slot: int, task: str, seed: int | None = None) -> Future[Event]:
        """Start ``task`` in ``slot``, ending whatever runs there."""
        return self._ask("reset", slot, task, seed)

    def step(self, slot: int, action: str) -> Future[Event]:
        """Carry out ``action``; the future raises ValueError if no episode runs in ``slot``."""
        return self._ask("step", slot, action)

    def release(self, slot: int) -> None:
        """End whatever runs in the slot, and cancel its unanswered request."""
        self._hand_over("release", slot)

    def close(self) -> None:
        """Close the environments and end their processes; idempotent."""
        self._hand_over("close", 0)
        self._thread.join(timeout=30)

    def _ask(self, operation: str, slot: int, *arguments: Any) -> Future[Event]:
        if self._end_reason is not None:
            raise PoolClosed(str(self._end_reason))
        future = self._hand_over(operation, slot, *arguments)
        if not self._thread.is_alive() and not future.done():
            future.cancel()  # the thread ended between the lines above, after it had emptied the queue
        return future

    def _hand_over(self, operation: str, slot: int, *arguments: Any) -> Future[Event]:
        future: Future[Event] = Future()
        self._requests.put((operation, slot, arguments, future))
        self._pool.wake()
        return future

    # The thread that owns the pool ------------------------------------------------------------------------------------

    def _run(self, opening: Future[WorkerPool], env_id: str, kwargs: Kwargs, options: dict[str, Any]) -> None:
        futures: dict[int, Future[Event]] = {}
        try:
            with WorkerPool(env_id, kwargs, **options) as pool:
                opening.set_result(pool)
                while self._take_requests(pool, futures):
                    for event in pool.wait():
                        future = futures.pop(event.slot, None)
                        if future is not None and future.set_running_or_notify_cancel():
                            future.set_result(event)
            self._end_reason = PoolClosed("the pool is closed")
        except BaseException as error:  # whatever ends this thread, no client may wait for it afterwards
            self._end_reason = error
            if not opening.done():
                opening.set_exception(error)
        unanswered = list(futures.values())
        with suppress(queue.Empty):
            while True:
                unanswered.append(self._requests.get_nowait()[-1])
        for future in unanswered:
            if future.set_running_or_notify_cancel():
                future.set_exception(PoolClosed(str(self._end_reason)))

    def _take_requests(self, pool: WorkerPool, futures: dict[int, Future[Event]]) -> bool:
        """Pass requests on to the pool, waiting for one if none is outstanding; False to close."""
        with suppress(queue.Empty):
            block = not futures
            while True:
                operation, slot, arguments, future = self._requests.get(block)
                block = False
                if operation == "close":
                    return False
                if operation == "release":
                    pool.release(slot)
                    if slot in futures:
                        futures.pop(slot).cancel()
                elif slot in futures:
                    future.set_exception(ValueError("the last request is not answered yet"))
                else:
                    try:
                        getattr(pool, operation)(slot, *arguments)
                        futures[slot] = future
                    except (ValueError, TypeError) as error:
                        future.set_exception(error)
        return True
