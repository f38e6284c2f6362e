"""Errors that a user can fix.

Invalid settings, files, models and arguments raise a :class:`GagpoError`, whose message is one line that says what is
wrong, where, and what to do. Any other error that reaches the command line is a bug and is shown with its traceback.
"""

from __future__ import annotations


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
    """SIGTERM has arrived.

    A class of its own, so that code that reports a ``sys.exit()`` of an environment as the environment's error can let
    this one pass.
    """


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after a line has told the user how to continue."""


def first_line(error: BaseException, most: int = 200) -> str:
    """The first non-empty line of ``error``, cut to ``most`` characters; its type if there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:most]
