"""An event loop in a thread, for connections that must answer a server's pings between two steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")
CLOSE_SECONDS = 5.0  # for the thread to end
GRACE_SECONDS = 5.0  # beyond a request's own deadline, before its caller gives up


class LoopThread:
    """Runs coroutines for callers in any thread."""

    def __init__(self, name: str):
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of ``work``, which is cancelled after ``timeout`` seconds.

        Raises:
            TimeoutError: it was not done in time, or the loop was closed.
        """

        async def within() -> T:
            async with asyncio.timeout(timeout):
                return await work

        if self._is_closing:
            work.close()
            raise TimeoutError("the connection is closed")
        future = asyncio.run_coroutine_threadsafe(within(), self._loop)
        try:
            return future.result(timeout + GRACE_SECONDS)
        except CancelledError:
            raise TimeoutError("the connection is closed") from None
        except BaseException:
            future.cancel()  # Ctrl-C in the caller's thread, say
            raise

    def close(self) -> None:
        """Cancel what still runs, and end the thread; idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    unfinished = asyncio.all_tasks() - {asyncio.current_task()}
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
