"""Suggest known names for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str], count: int = 3, cutoff: float = 0.4) -> list[str]:
    """Up to ``count`` of the ``candidates`` similar to ``name``, most similar first.

    cutoff: least similarity, from 0 (any) to 1 (equal): ``difflib``'s ratio.
    """
    return difflib.get_close_matches(name, list(candidates), count, cutoff)


def hint(name: str, candidates: Iterable[str]) -> str:
    """The end of an error: ``nearest: a, b``, or ``known: a, b, c`` if no name is similar.

    >>> hint("gigp", ["gigpo", "gae"]), hint("x", ["gigpo", "gae"])
    ('nearest: gigpo', 'known: gigpo, gae')
    """
    names = list(candidates)
    similar = nearest(name, names)
    return f"nearest: {', '.join(similar)}" if similar else f"known: {', '.join(names)}"
