"""Line charts as inline SVG in the colours of the page's theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gagpo.eval.report.page import render
from gagpo.eval.summary import number

RIGHT, TOP, BOTTOM = 8, 10, 20  # margins in user units, which are pixels at natural size
LETTER = 6.6  # upper bound of the width of an axis letter
SMALL, WIDE, NARROW = (320, 150), (940, 300), (360, 230)  # sizes; a large chart is drawn wide and narrow


@dataclass(frozen=True)
class Series:
    """One line; with ``ranges``, (low, high) of each point, its points are marks with whiskers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    ranges: Sequence[tuple[float, float]] | None = None


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most`` round numbers from ``low`` to ``high``, spaced by 1, 2 or 5 times a power of ten.

    >>> ticks(0, 37)
    [0.0, 10.0, 20.0, 30.0]
    """
    if not (high - low) / most > 1e-300:  # below, powers of ten underflow
        return [low]
    power = math.floor(math.log10((high - low) / most))
    for step in (factor * 10.0**exponent for exponent in (power, power + 1, power + 2) for factor in (1, 2, 5)):
        # The first step that leaves few enough multiples inside.
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [round(i * step, 12 - power) for i in range(first, last + 1)]


def tick_texts(values: Sequence[float], share: bool) -> list[str]:
    """Axis labels with enough digits to tell them apart.

    >>> tick_texts([0.0, 0.2], share=True), tick_texts([1.0001, 1.0002], share=False)
    (['0 %', '20 %'], ['1.0001', '1.0002'])
    """
    for digits in range(3, 17):
        texts = [f"{100 * y:.{digits}g} %" if share else f"{y:.{digits}g}" for y in values]
        if len(set(texts)) == len(values):
            break
    return [number(y) for y in values] if digits == 3 and not share else texts


def line_chart(caption: str, series: Sequence[Series], share: bool = False, large: bool = False) -> Markup:
    """A figure of lines over iterations; empty if no line has a point.

    share: the values are shares, labelled in per cent.
    large: as wide as the page, with a second drawing for small screens.
    """
    series = [one for one in series if len(one.x)]
    if not series:
        return Markup("")
    several = len(series) > 1
    last = ", ".join(f"{one.name} {number(one.y[-1], share)}".strip() for one in series)
    return render(
        "chart.html",
        caption=caption,
        value="" if several else number(series[0].y[-1], share),
        label=f"{caption}; last: {last}",
        large=large,
        drawings=[_drawing(series, share, *size) for size in ((WIDE, NARROW) if large else (SMALL,))],
        names=[{"colour": f"c{i % 4}", "text": one.name} for i, one in enumerate(series)] if several else [],
    )


def _drawing(series: Sequence[Series], share: bool, width: int, height: int) -> dict[str, object]:
    xs, ys = _limits(series, share)
    rows = ticks(*ys, most=6 if height > SMALL[1] else 4)
    texts = tick_texts(rows, share)
    left = 10 + LETTER * max(map(len, texts))
    frame = _Frame(xs, ys, left, width - RIGHT, height)
    return {
        "width": width,
        "height": height,
        "left": f"{left:.1f}",
        "right": width - RIGHT,
        "rows": [
            {"at": f"{frame.y(y):.1f}", "text_at": f"{frame.y(y) + 4:.1f}", "text_to": f"{left - 5:.1f}", "text": text}
            for y, text in zip(rows, texts, strict=True)
        ],
        "columns": [{"at": f"{frame.x(x):.1f}", "text": number(x)} for x in ticks(*xs) if x == int(x)],
        "lines": [_line(one, frame, f"c{i % 4}") for i, one in enumerate(series)],
    }


@dataclass(frozen=True)
class _Frame:
    """Maps numbers to pixels: axis limits ``xs`` and ``ys``, the plot area from ``left`` to ``right``."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    left: float
    right: float
    height: int

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * (value - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        inside = min(max(value, self.ys[0]), self.ys[1])
        return self.height - BOTTOM - (self.height - BOTTOM - TOP) * (inside - self.ys[0]) / (self.ys[1] - self.ys[0])


def _line(one: Series, frame: _Frame, colour: str) -> dict[str, object]:
    """The path of a line, the whiskers of its ranges and its marks."""
    points = [(f"{frame.x(x):.1f}", f"{frame.y(y):.1f}") for x, y in zip(one.x, one.y, strict=True)]
    marked = one.ranges is not None or len(points) == 1
    return {
        "colour": colour,
        "path": " ".join(f"{x},{y}" for x, y in points) if len(points) > 1 else "",
        "ranges": [
            {"x": x, "low": f"{frame.y(low):.1f}", "high": f"{frame.y(high):.1f}"}
            for (x, _), (low, high) in zip(points, one.ranges or (), strict=False)
        ],
        "circles": [{"x": x, "y": y} for x, y in points] if marked else [],
    }


def _limits(series: Sequence[Series], share: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in one.y]
    left, right = min(xs), max(xs)
    low, high = (0.0, 1.0) if share and max(ys) > 0.3 else (min(0.0, *ys) if share else min(ys), max(ys))
    if right - left <= 1e-9 * max(abs(left), abs(right)):
        left, right = left - max(1.0, abs(left) / 10), right + max(1.0, abs(right) / 10)
    if high - low <= 1e-9 * max(1e-12, abs(low), abs(high)):
        low, high = low - max(abs(low), 1e-9) / 10, high + max(abs(high), 1e-9) / 10
    elif not share:
        low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    return (left, right), (low, high)
