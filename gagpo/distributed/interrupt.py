"""Handle Ctrl-C and SIGTERM, and defer them while the weights are being changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gagpo.base.errors import Terminated
from gagpo.distributed.ranks import Ranks


class Interruptions:
    """While :meth:`watching`, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated(143).

    In :meth:`deferred` a signal is raised at the end of the context; a second SIGINT is raised at once. Python delivers
    signals to the main thread only: in other threads the contexts do nothing.

    With several ranks a signal is deferred everywhere except in :meth:`immediate`, and raised on all ranks where they
    meet, so that no rank waits for one that has stopped.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self._deferring = not self.ranks.alone
        self._pending: BaseException | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        if self.ranks.watch is not None:
            self.ranks.watch.stop_when(lambda: self._pending is not None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = not self.ranks.alone
        pending, self._pending = self._pending, None
        if not self.ranks.alone:
            names = self.ranks.gathered(pending and type(pending).__name__)
            self.ranks.raise_together(pending, names)
        elif pending is not None:
            raise pending

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise signals at once, and a deferred one on entry. The caller synchronises the ranks afterwards."""
        self._deferring, before = False, self._deferring
        try:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                raise pending
            yield
        finally:
            self._deferring = before

    def _take(self, number: int, frame: FrameType | None) -> None:
        error: BaseException = KeyboardInterrupt() if number == signal.SIGINT else Terminated(128 + number)
        if self._deferring and self._pending is None:
            self._pending = error
            return
        raise error
