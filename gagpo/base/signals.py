"""SIGINT and SIGTERM as exceptions that are not lost.

Python throws away what a signal handler raises within a destructor, a callback of a weak reference or one of C code
("Exception ignored in"), and other packages may catch it. The program would then run on as if no signal had come. So a
thread sends :data:`AGAIN` to the main thread until the exception is on its way to the code that watches for it.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gagpo.base.errors import Terminated

AGAIN = signal.SIGURG  # ignored by default, so that a late one does no harm
AGAIN_SECONDS = 0.05
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """While :meth:`watching`, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated(143) in the main thread."""

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._hook: Any = None

    @contextmanager
    def watching(self, numbers: Sequence[int] = NUMBERS) -> Iterator[None]:
        """Raise signals in the block. In another thread than the main one, which gets no signals, it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {**dict.fromkeys(numbers, self._take), AGAIN: self._raise_again}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._show_unraisable
        _WATCHING.append(self)
        try:
            yield
            if self._raised is not None:  # lost at the end of the block
                raise self._raised
        finally:
            _WATCHING.remove(self)
            self._raised = None  # ends the thread
            sys.unraisablehook = self._hook
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._raise(error_of(number), frame)

    def _raise(self, error: BaseException, frame: FrameType | None) -> None:
        """Raise ``error`` now, or soon if the interrupted ``frame`` would lose it. A second error is raised now."""
        is_first = self._raised is None
        self._raised = error
        if is_first:
            # Not threading.Thread: it takes locks that the interrupted code may hold.
            _thread.start_new_thread(self._send_again, ())
        if not (is_first and _in_finalizer(frame)):
            raise error

    def _send_again(self) -> None:
        """Interrupt the main thread until the block of :meth:`watching` ends; also where it waits in a system call."""
        main = threading.main_thread().ident
        while self._raised is not None and main is not None:
            time.sleep(AGAIN_SECONDS)
            signal.pthread_kill(main, AGAIN)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception again unless it is on its way, in an ``except`` or ``finally`` that it has reached."""
        if self._raised is None or _is_handled(self._raised) or _in_finalizer(frame):
            return
        self._raised = type(self._raised)(*self._raised.args)
        raise self._raised

    def _show_unraisable(self, unraisable: Any) -> None:
        """Show an exception that Python throws away, unless it is the one that is raised again."""
        if unraisable.exc_value is None or unraisable.exc_value is not self._raised:
            self._hook(unraisable)


_WATCHING: list[Signals] = []


def accept() -> None:
    """Do not raise the last signal again: the caller has caught it, and goes on."""
    for signals in _WATCHING:
        signals._raised = None


def error_of(number: int) -> BaseException:
    """The exception that a signal stands for."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(128 + number)


def _is_handled(error: BaseException) -> bool:
    """Whether the interrupted code is handling ``error``, or an exception that it led to."""
    handled = sys.exc_info()[1]
    while handled is not None and handled is not error:
        handled = handled.__context__
    return handled is error


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs within a finalizer, which may also be clearing up for an exception on its way."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False
