"""Ctrl-C and termination, held back while weights are half-way between two states."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interruptions:
    """While :meth:`watching`, SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143), but not inside :meth:`held`.

    A signal that arrives there is raised at its end; a second SIGINT is raised at once. Python delivers signals to the
    main thread only: elsewhere both contexts do nothing.
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending: BaseException | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {
            number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)
        }
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
            self._holding = False
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending

    def _take(self, number: int, frame: FrameType | None) -> None:
        error: BaseException = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if self._holding and self._pending is None:
            self._pending = error
            return
        raise error
