"""Errors of ranks."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class RankLost(GagpoError, RuntimeError):
    """A rank that ended, or that has shown no sign of life; the message names it."""


class RankFailed(GagpoError, RuntimeError):
    """Another rank failed and has reported why."""


class RanksDiffer(GagpoError, RuntimeError):
    """Ranks that should have computed the same and did not; the message names what."""


class RanksEnded(GagpoError, RuntimeError):
    """A rank ended early, and the others were ended with it.

    status: what to leave with. reported: that rank has said why.
    """

    def __init__(self, message: str, status: int, reported: bool):
        super().__init__(message)
        self.status, self.reported = status, reported
