r"""Regions of the real line: intervals, unions, intersections and complements.

A region is a :class:`~gagpo.envs.math.verify.answers.Sequence`: an interval of its two ends, or a union of intervals.
"""

from __future__ import annotations

from fractions import Fraction

from gagpo.envs.math.verify.answers import INFINITY, MINUS_INFINITY, Answer, Formula, Number, Sequence

LESS, LESS_OR_EQUAL, GREATER, GREATER_OR_EQUAL, UNEQUAL = "<", r"\le", ">", r"\ge", r"\ne"


def interval(low: Answer, high: Answer, opening: str = "(", closing: str = ")", name: str = "") -> Sequence | None:
    """The interval with these ends; None if it is empty or an end is neither a number nor a formula."""
    if not all(isinstance(end, Number | Formula) and not end.name for end in (low, high)):
        return None
    bottom, top = _value(low), _value(high)
    if bottom is None or top is None or bottom < top or (bottom == top and (opening, closing) == ("[", "]")):
        return Sequence((low, high), opening, closing, name)
    return None


def half_line(operator: str, end: Answer, name: str) -> Sequence | None:
    """The region where ``name operator end`` holds; all but a point for ``\\ne``."""
    below = interval(MINUS_INFINITY, end, "(", "]" if operator == LESS_OR_EQUAL else ")", name)
    above = interval(end, INFINITY, "[" if operator == GREATER_OR_EQUAL else "(", ")", name)
    if operator == UNEQUAL:
        return below and above and union([below, above], name)
    return below if operator in (LESS, LESS_OR_EQUAL) else above


def real_line(name: str = "") -> Sequence:
    return Sequence((MINUS_INFINITY, INFINITY), "(", ")", name)


def is_region(answer: Answer) -> bool:
    """Whether ``answer`` may be an interval or a union of intervals; a point in the plane looks like one too."""
    if not isinstance(answer, Sequence):
        return False
    found = answer.items if answer.opening == r"\cup" else (answer,)
    return all(isinstance(piece, Sequence) and piece.opening in ("(", "[") and len(piece.items) == 2 for piece in found)


def pieces(region: Sequence) -> list[Sequence]:
    """The intervals of a region."""
    if region.opening != r"\cup":
        return [region]
    return [item for item in region.items if isinstance(item, Sequence)]


def union(regions: list[Sequence], name: str) -> Sequence:
    found = [Sequence(piece.items, piece.opening, piece.closing) for region in regions for piece in pieces(region)]
    if len(found) == 1:
        return Sequence(found[0].items, found[0].opening, found[0].closing, name)
    return Sequence(tuple(found), r"\cup", r"\cup", name)


def intersection(regions: list[Sequence], name: str) -> Sequence | None:
    """The intersection; None if it is empty or if comparing the ends needs algebra."""
    left = pieces(regions[0])
    try:
        for region in regions[1:]:
            met = [_intersect(one, other) for one in left for other in pieces(region)]
            left = [piece for piece in met if piece]
    except _NeedsAlgebra:
        return None
    return union(left, name) if left else None


def complement(region: Sequence, name: str) -> Sequence | None:
    """The rest of the real line."""
    sides = []
    for piece in pieces(region):
        low, high = piece.items
        below = None if low == MINUS_INFINITY else interval(MINUS_INFINITY, low, "(", _OTHER_SIDE[piece.opening])
        above = None if high == INFINITY else interval(high, INFINITY, _OTHER_SIDE[piece.closing], ")")
        sides.append([side for side in (below, above) if side])
    return intersection([union(side, name) for side in sides], name) if all(sides) else None


_OTHER_SIDE = {"(": "]", "[": ")", ")": "[", "]": "("}
"""The bracket of the complement: that of ``(2`` ends in ``2]``."""


class _NeedsAlgebra(Exception):
    """Two ends cannot be compared without algebra."""


def _value(end: Answer) -> Fraction | float | None:
    if end == INFINITY:
        return float("inf")
    if end == MINUS_INFINITY:
        return float("-inf")
    return end.value if isinstance(end, Number) else None


def _intersect(one: Sequence, other: Sequence) -> Sequence | None:
    """The intersection of two intervals."""
    low, opening = _inner_end((one.items[0], one.opening), (other.items[0], other.opening), 1)
    high, closing = _inner_end((one.items[1], one.closing), (other.items[1], other.closing), -1)
    return interval(low, high, opening, closing)


def _inner_end(one: tuple[Answer, str], other: tuple[Answer, str], sign: int) -> tuple[Answer, str]:
    """The inner of two lower ends (``sign`` 1) or upper ends (-1), with its bracket."""
    first, second = _value(one[0]), _value(other[0])
    if one[0] == other[0] or (first is not None and first == second):
        return one if one[1] in ("(", ")") else other
    outermost = -sign * float("inf")
    if first == outermost or second == outermost:
        return other if first == outermost else one
    if first is None or second is None:
        raise _NeedsAlgebra
    return one if sign * first > sign * second else other
