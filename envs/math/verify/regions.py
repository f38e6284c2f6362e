r"""Regions of the real line: intervals, unions, intersections and complements.

A region is a :class:`~gagpo.envs.math.verify.answers.Sequence`: an interval of its two ends, or a union of intervals.
"""

from __future__ import annotations

from fractions import Fraction

from gagpo.envs.math.verify.answers import INFINITY, MINUS_INFINITY, Answer, Formula, Number, Sequence

LESS = "<"
LESS_OR_EQUAL = r"\le"
GREATER = ">"
GREATER_OR_EQUAL = r"\ge"
UNEQUAL = r"\ne"


def interval(low: Answer, high: Answer, opening: str = "(", closing: str = ")", name: str = "") -> Sequence | None:
    """The interval with these ends; None if it is empty or an end is neither a number nor a formula."""
    if not all(isinstance(end, Number | Formula) and not end.name for end in (low, high)):
        return None
    bottom = _value(low)
    top = _value(high)
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
    intervals = answer.items if answer.opening == r"\cup" else (answer,)
    return all(
        isinstance(interval, Sequence) and interval.opening in ("(", "[") and len(interval.items) == 2
        for interval in intervals
    )


def pieces(region: Sequence) -> list[Sequence]:
    """The intervals of a region."""
    if region.opening != r"\cup":
        return [region]
    return [item for item in region.items if isinstance(item, Sequence)]


def union(regions: list[Sequence], name: str) -> Sequence:
    intervals = [
        Sequence(interval.items, interval.opening, interval.closing)
        for region in regions
        for interval in pieces(region)
    ]
    if len(intervals) == 1:
        return Sequence(intervals[0].items, intervals[0].opening, intervals[0].closing, name)
    return Sequence(tuple(intervals), r"\cup", r"\cup", name)


def intersection(regions: list[Sequence], name: str) -> Sequence | None:
    """The intersection; None if it is empty or if comparing the ends needs algebra."""
    intervals = pieces(regions[0])
    try:
        for region in regions[1:]:
            overlaps = [_intersect(first, second) for first in intervals for second in pieces(region)]
            intervals = [interval for interval in overlaps if interval]
    except _NeedsAlgebra:
        return None
    return union(intervals, name) if intervals else None


def complement(region: Sequence, name: str) -> Sequence | None:
    """The rest of the real line."""
    sides = []
    for region_interval in pieces(region):
        low, high = region_interval.items
        if low == MINUS_INFINITY:
            below = None
        else:
            below = interval(MINUS_INFINITY, low, "(", _OTHER_SIDE[region_interval.opening])
        if high == INFINITY:
            above = None
        else:
            above = interval(high, INFINITY, _OTHER_SIDE[region_interval.closing], ")")
        sides.append([side for side in (below, above) if side])
    if all(sides):
        return intersection([union(side, name) for side in sides], name)
    return None


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


def _intersect(first: Sequence, second: Sequence) -> Sequence | None:
    """The intersection of two intervals."""
    low, opening = _inner_end((first.items[0], first.opening), (second.items[0], second.opening), 1)
    high, closing = _inner_end((first.items[1], first.closing), (second.items[1], second.closing), -1)
    return interval(low, high, opening, closing)


def _inner_end(first_end: tuple[Answer, str], second_end: tuple[Answer, str], sign: int) -> tuple[Answer, str]:
    """The inner of two lower ends (``sign`` 1) or upper ends (-1), with its bracket."""
    first_value = _value(first_end[0])
    second_value = _value(second_end[0])
    if first_end[0] == second_end[0] or (first_value is not None and first_value == second_value):
        return first_end if first_end[1] in ("(", ")") else second_end
    outermost = -sign * float("inf")
    if first_value == outermost or second_value == outermost:
        return second_end if first_value == outermost else first_end
    if first_value is None or second_value is None:
        raise _NeedsAlgebra
    if sign * first_value > sign * second_value:
        return first_end
    return second_end
