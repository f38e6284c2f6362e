"""Small line charts as inline SVG, which take their colours from the page and so follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gagpo.eval.report.page import text

LEFT, RIGHT, TOP, BOTTOM = 38, 8, 10, 20  # margins in user units, which are pixels at natural size


LARGE = ' class="large"'


@dataclass(frozen=True)
class Series:
    """One line. ``ranges`` holds (low, high) for each point and turns the points into marks with whiskers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    ranges: Sequence[tuple[float, float]] | None = None


def number(value: float, share: bool = False) -> str:
    """A number in three digits, in per cent when it is a share.

    >>> number(0.3051, share=True), number(12345.6), number(0.000312), number(2.0)
    ('30.5 %', '12,346', '0.000312', '2')
    """
    if share:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most ``most`` of them, spaced by 1, 2 or 5 times a power of ten.

    >>> ticks(0, 37)
    [0.0, 10.0, 20.0, 30.0]
    """
    if not high > low:
        return [low]
    power = math.floor(math.log10((high - low) / most))
    for step in (factor * 10.0**exponent for exponent in (power, power + 1, power + 2) for factor in (1, 2, 5)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [round(i * step, 12 - power) for i in range(first, last + 1)]


def line_chart(caption: str, series: Sequence[Series], share: bool = False, large: bool = False) -> str:
    """A figure of one or more lines over iterations; empty when none has a point. Shares are drawn from 0 to 1."""
    width, height = (380, 220) if large else (320, 150)
    series = [one for one in series if len(one.x)]
    if not series:
        return ""
    names = len(series) > 1
    right = width - RIGHT - (max(min(len(one.name), 16) for one in series) * 6.2 + 8 if names else 0)
    frame = _Frame(*_limits(series, share), right, height)
    parts = []
    for y in ticks(*frame.up, most=6 if large else 4):
        at = frame.y(y)
        shown = f"{100 * y:g} %" if share else number(y)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{shown}</text>')
    for x in ticks(*frame.across):
        if x == int(x):
            parts.append(f'<text x="{frame.x(x):.1f}" y="{height - 5}" text-anchor="middle">{number(x)}</text>')
    parts += [_line(one, frame, f"c{i % 4}") for i, one in enumerate(series)]
    if names:
        ends = sorted((frame.y(one.y[-1]), one.name, f"c{i % 4}") for i, one in enumerate(series))
        for at, (_, name, colour) in zip(_apart([end[0] for end in ends], height), ends, strict=True):
            short = text(name if len(name) <= 16 else name[:14] + "..")
            parts.append(f'<text class="name {colour}" x="{right + 7:.1f}" y="{at + 4:.1f}">{short}</text>')
    last = ", ".join(f"{one.name} {number(one.y[-1], share)}".strip() for one in series)
    label = f'role="img" aria-label="{text(f"{caption}; last: {last}")}"'
    value = "" if names else f" <b>{number(series[0].y[-1], share)}</b>"
    drawn = f'<svg viewBox="0 0 {width} {height}" {label}>{"".join(parts)}</svg>'
    return f"<figure{LARGE if large else ''}><figcaption>{text(caption)}{value}</figcaption>{drawn}</figure>"


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie in the picture: the limits of both axes, the right edge and the height."""

    across: tuple[float, float]
    up: tuple[float, float]
    right: float
    height: int

    def x(self, value: float) -> float:
        return LEFT + (self.right - LEFT) * (value - self.across[0]) / (self.across[1] - self.across[0])

    def y(self, value: float) -> float:
        inside = min(max(value, self.up[0]), self.up[1])
        return self.height - BOTTOM - (self.height - BOTTOM - TOP) * (inside - self.up[0]) / (self.up[1] - self.up[0])


def _line(one: Series, frame: _Frame, colour: str) -> str:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(one.x, one.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline class="line {colour}" points="{path}"/>' if len(points) > 1 else ""
    for (x, _), (low, high) in zip(points, one.ranges or (), strict=False):
        ends = f'y1="{frame.y(low):.1f}" y2="{frame.y(high):.1f}"'
        drawn += f'<line class="range {colour}" x1="{x:.1f}" x2="{x:.1f}" {ends}/>'
    if one.ranges is not None or len(points) == 1:
        drawn += "".join(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    return drawn


def _limits(series: Sequence[Series], share: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in one.y]
    left, right = min(xs), max(xs)
    low, high = (0.0, 1.0) if share and max(ys) > 0.3 else (min(0.0, *ys) if share else min(ys), max(ys))
    if right - left <= 1e-9 * max(abs(left), abs(right)):
        left, right = left - max(1.0, abs(left) / 10), right + max(1.0, abs(right) / 10)
    if high - low <= 1e-9 * max(1e-12, abs(low), abs(high)):
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    elif not share:
        low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    return (left, right), (low, high)


def _apart(heights: Sequence[float], height: int) -> list[float]:
    """Heights of the names in rising order, moved so that they keep 13 units between them and stay in the picture."""
    places: list[float] = []
    for at in heights:
        places.append(max(at, places[-1] + 13) if places else max(at, float(TOP)))
    over = max(0.0, places[-1] - (height - BOTTOM)) if places else 0.0
    return [at - over for at in places]
