"""The names that a wrong one was probably meant to be, and how an error says so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.4) -> list[str]:
    """Up to ``count`` of the ``known`` names that are like ``name``, the likest first.

    cutoff: the least likeness that counts, from 0 (any) to 1 (equal): ``difflib``'s ratio.
    """
    return difflib.get_close_matches(name, list(known), count, cutoff)


def hint(name: str, known: Iterable[str]) -> str:
    """What an error adds: ``nearest: a, b``, or ``known: a, b, c`` where nothing is like ``name``.

    >>> hint("gigp", ["gigpo", "gae"]), hint("x", ["gigpo", "gae"])
    ('nearest: gigpo', 'known: gigpo, gae')
    """
    known = list(known)
    near = nearest(name, known)
    return f"{'nearest' if near else 'known'}: {', '.join(near or known)}"
