"""Errors of ranks."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class RankLost(GagpoError, RuntimeError):
    """A rank ended or stopped responding; the message names it."""


class RankFailed(GagpoError, RuntimeError):
    """Another rank failed and has reported why."""


class RanksDiffer(GagpoError, RuntimeError):
    """Ranks computed different values of the same quantity; the message names it."""


class RanksEnded(GagpoError, RuntimeError):
    """A rank ended early, and the others were ended with it.

    status: the exit status for this process.
    reported: that rank has printed why.
    """

    def __init__(self, message: str, status: int, reported: bool):
        super().__init__(message)
        self.status, self.reported = status, reported
