"""What is raised for turns that no credit can be computed from."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class BadTurns(GagpoError, ValueError):
    """Turns that no credit can be computed from; the message names the column, the place and the remedy."""
