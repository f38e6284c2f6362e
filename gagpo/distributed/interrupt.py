"""Ctrl-C and termination, held back while weights are half-way between two states."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gagpo.distributed.ranks import Ranks


class Interruptions:
    """While :meth:`watching`, SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143), but not inside :meth:`held`.

    A signal that arrives there is raised at its end; a second SIGINT is raised at once. Python delivers signals to the
    main thread only: elsewhere both contexts do nothing.

    Among several ranks a signal is held everywhere but inside :meth:`heeded`, and raised where all ranks meet, on all
    of them: none is left waiting for one that has stopped.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self._holding = not self.ranks.alone
        self._pending: BaseException | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        if self.ranks.watch is not None:
            self.ranks.watch.heed(lambda: self._pending is not None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holding = True
        try:
            yield
        finally:
            self._holding = not self.ranks.alone
        pending, self._pending = self._pending, None
        if not self.ranks.alone:
            names = self.ranks.gathered(pending and type(pending).__name__)
            self.ranks.raise_together(pending, names)
        elif pending is not None:
            raise pending

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, a signal is raised at once, and one that was held is raised now; for what ends in an agreement."""
        self._holding, before = False, self._holding
        try:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                raise pending
            yield
        finally:
            self._holding = before

    def _take(self, number: int, frame: FrameType | None) -> None:
        error: BaseException = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if self._holding and self._pending is None:
            self._pending = error
            return
        raise error
