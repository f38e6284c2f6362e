"""Errors that a user can mend.

Whatever is wrong with what a user gave (settings, files, models, arguments) is raised as a :class:`GagpoError`, whose
message is one line that names the thing and says what to do. Anything else that reaches the command line is a fault of
ours and is shown with its traceback.
"""

from __future__ import annotations


class GagpoError(Exception):
    """Something a user can mend; the message is for people.

    reported: another process has said it already.
    """

    reported = False


class InvalidArgument(GagpoError, ValueError):
    """An argument or setting whose value makes no sense."""


class MissingPackage(GagpoError, ImportError):
    """An optional package that is not installed; the message names what to install."""


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of ``error`` that is not empty, ``most`` characters of it; its type where it says nothing."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:most]
