"""Errors that a user can fix.

Invalid settings, files, models and arguments raise a :class:`GagpoError`, whose message is one line that says what is
wrong, where, and what to do. Any other error that reaches the command line is a bug and is shown with its traceback.
"""

from __future__ import annotations

import signal
import traceback


class GagpoError(Exception):
    """An error that a user can fix, told in parts: ``str`` joins them to one line, ``WHERE: PROBLEM; ADVICE``.

    A program that reacts to an error, and a test, ask for the parts; the wording may change from version to version.

    problem: what is wrong, with the offending value; or another such error, whose other parts are taken over.
    key: the setting, argument or column that is wrong, which the problem names too; None if it is none of these.
    where: the file, row, address, environment or other owner of what is wrong; None if the problem names it.
    advice: what to type or to change; None if the problem says all.
    reported: another process has printed it already.
    """

    reported = False
    problem: str
    where: str | None
    key: str | None
    advice: str | None

    def __init__(
        self, problem: object = "", *, key: str | None = None, where: object = None, advice: str | None = None
    ):
        if isinstance(problem, GagpoError):  # found again further out, where the file or the row is known
            key, advice = key or problem.key, advice or problem.advice
            where, problem = (problem.where, problem.problem) if where is None else (where, problem.placed)
        super().__init__(problem)  # args hold the problem alone; pickling keeps the other parts as attributes
        self.problem = str(problem)
        self.key = key
        self.where = None if where is None else str(where)
        self.advice = advice

    @property
    def placed(self) -> str:
        """The problem with where it is, without the advice."""
        return self.problem if self.where is None else f"{self.where}: {self.problem}"

    def __str__(self) -> str:
        return f"{self.placed}; {self.advice}" if self.advice else self.placed


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
