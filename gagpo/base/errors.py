"""Errors that a user can fix.

Invalid settings, files, models and arguments raise a :class:`GagpoError`, whose message is one line that says what is
wrong, where, and what to do. Any other error that reaches the command line is a bug and is shown with its traceback.
"""

from __future__ import annotations

import signal
import traceback


class GagpoError(Exception):
    """An error that a user can fix.

    reported: another process has printed it already.
    """

    reported = False


class InvalidArgument(GagpoError, ValueError):
    """An argument or setting with an invalid value."""


class MissingPackage(GagpoError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class Terminated(SystemExit):
    """SIGTERM has arrived. A class of its own, so that :func:`is_termination` tells it from an environment's exit."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after a line has told the user how to continue."""


def is_termination(error: BaseException) -> bool:
    """Whether ``error`` is a SystemExit of a signal handler, and not of the code that was running.

    Code that reports a ``sys.exit()`` of an environment as the environment's error must raise this one again. Handlers
    of a program that uses this package as a library count too: their frame is in the traceback.
    """
    if not isinstance(error, SystemExit):
        return False
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, Terminated) or any(frame.f_code in codes for frame, _ in frames)


def first_line(error: BaseException, most: int = 200) -> str:
    """The first non-empty line of ``error``, cut to ``most`` characters; its type if there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:most]
