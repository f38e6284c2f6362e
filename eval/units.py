"""Numbers as text: in per cent, as rewards or as counts, with an interval or a spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gagpo.eval.statistics import Interval

LARGEST, SMALLEST = 1e7, 1e-5
"""Rewards beyond these are written with an exponent."""


@dataclass(frozen=True)
class MeasureUnit:
    """How the numbers of a measure are written.

    number: a value as text; further arguments are numbers that it is shown with, ``signed`` adds the sign.
    suffix: what follows the measure's name in the header of a column.
    difference: the header of a column of differences.
    """

    number: Callable[..., str]
    suffix: str = ""
    difference: str = "rise"

    def amount(self, difference: float) -> str:
        """A difference without its sign: ``12.0 points``, ``0.0500``."""
        return f"{self.number(difference)} points" if self.difference == "points" else self.number(difference)

    def interval(self, interval: Interval, signed: bool = False) -> str:
        """``30.5 [21.6, 41.2]``."""
        numbers = (interval.value, interval.low, interval.high)
        value, low, high = [self.number(number, *numbers, signed=signed) for number in numbers]
        return f"{value} [{low}, {high}]"

    def spread(self, interval: Interval, signed: bool = False) -> str:
        """``72.2 ± 5.2``; without the second part for a single seed, empty for NaN."""
        if math.isnan(interval.value):
            return ""
        half = (interval.high - interval.low) / 2
        value = self.number(interval.value, half, signed=signed)
        return f"{value} ± {self.number(half, interval.value)}" if math.isfinite(half) and half else value


def percent(value: float, *_: float, signed: bool = False) -> str:
    """A share in per cent with one decimal, or ``-`` for NaN.

    >>> percent(0.305), percent(0.04, signed=True), percent(float("nan"))
    ('30.5', '+4.0', '-')
    """
    return plain(100 * value, signed=signed)


def plain(value: float, digits: int = 1, signed: bool = False) -> str:
    """A number with ``digits`` decimals, or ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{round(value, digits) + 0.0:{'+' if signed else ''}.{digits}f}"  # the sum turns -0.0 into 0.0


def reward_number(value: float, *shown_with: float, signed: bool = False) -> str:
    """A reward with three significant digits, or ``-`` for NaN.

    >>> reward_number(0.0125), reward_number(0.5), reward_number(-12.34), reward_number(31_500.0)
    ('0.0125', '0.500', '-12.3', '31,500')
    """
    if not math.isfinite(value):
        return "-"
    plus = "+" if signed else ""
    largest = max(abs(number) for number in (value, *shown_with) if math.isfinite(number))
    if largest >= LARGEST or 0 < largest < SMALLEST:
        return f"{value:{plus}.2e}"
    # Three digits of the largest number, so that all numbers of an interval have equally many decimals.
    digits = 3 if largest in (0.0, 1.0) else max(0, 2 - math.floor(math.log10(largest)))
    return f"{round(value, digits) + 0.0:{plus},.{digits}f}"  # the sum turns -0.0 into 0.0


def _count(value: float, *_: float, signed: bool = False) -> str:
    return plain(value, 2, signed)


PERCENT = MeasureUnit(percent, suffix=" %", difference="points")
REWARDS = MeasureUnit(reward_number)
COUNT = MeasureUnit(_count)


def p_value(value: float) -> str:
    """Three decimals, or ``<.001``.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '<.001')
    """
    return "<.001" if value < 0.0005 else f"{value:.3f}"
