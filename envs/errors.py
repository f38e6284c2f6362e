"""Errors that a user can mend.

Whatever is wrong with what a user gave (settings, files, models, arguments) is raised as a :class:`GagpoError`, whose
message is one line that names the thing and says what to do. Anything else that reaches the command line is a fault of
ours and is shown with its traceback.
"""

from __future__ import annotations


class GagpoError(Exception):
    """Something a user can mend; the message is for people.

    told: another process has said it already.
    """

    told = False


class InvalidArgument(GagpoError, ValueError):
    """An argument or setting whose value makes no sense."""


class MissingPackage(GagpoError, ImportError):
    """An optional package that is not installed; the message names what to install."""
