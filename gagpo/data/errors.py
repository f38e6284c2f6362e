"""The error of unusable columns."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class BadTurns(GagpoError, ValueError):
    """Credit cannot be computed from these turns; the message names the column and the remedy."""
