"""Results as text: ASCII lines of at most 60 columns, the same for a pipe, a log and a narrow terminal.

Every ``width`` is at least 30 columns.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from gagpo.eval.results import EvalResult
from gagpo.eval.statistics import Interval

WIDTH = 60


def ascii_only(text: str) -> str:
    """``text`` on one line of printable ASCII; everything else as a backslash escape (it may come from a model).

    >>> ascii_only("Zoë" + chr(27) + "[2J")
    'Zo\\\\xeb\\\\x1b[2J'
    """
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode("ascii") for c in text)


def percent(value: float, signed: bool = False) -> str:
    """A share as per cent with one decimal, or ``-`` where there is none.

    >>> percent(0.305), percent(0.04, signed=True), percent(float("nan"))
    ('30.5', '+4.0', '-')
    """
    if math.isnan(value):
        return "-"
    rounded = round(100 * value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return f"{rounded:+.1f}" if signed else f"{rounded:.1f}"


def plain(value: float, digits: int = 1) -> str:
    """A number with so many decimals, or ``-`` where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def with_interval(interval: Interval, signed: bool = False) -> str:
    """``30.5 [21.6, 41.2]``, in per cent."""
    low, high = percent(interval.low, signed), percent(interval.high, signed)
    return f"{percent(interval.value, signed)} [{low}, {high}]"


def p_value(value: float) -> str:
    """Three decimals, or ``<.001``.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '<.001')
    """
    return "<.001" if value < 0.0005 else f"{value:.3f}"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Rows in columns: the first to the left and cut to fit, the others to the right. No line exceeds ``width``.

    Where the columns after the first leave it fewer than eight characters, each row becomes a block of
    ``name: value`` lines instead.
    """
    cells = [[ascii_only(cell) for cell in row] for row in (header, *rows)]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(header))]
    rest = sum(sizes[1:]) + 2 * (len(sizes) - 1)
    first = min(sizes[0], width - rest)
    if first < min(8, sizes[0]):
        return _blocks(cells[0], cells[1:], width)
    lines = []
    for row in cells:
        name = row[0] if len(row[0]) <= first else row[0][: max(0, first - 2)] + ".."
        right = "".join(f"  {cell:>{size}}" for cell, size in zip(row[1:], sizes[1:], strict=True))
        lines.append((name.ljust(first) + right).rstrip())
    lines.insert(1, "-" * (first + rest))
    return lines


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    lines: list[str] = []
    for row in rows:
        lines += _wrap(row[0], width, "")
        for name, cell in zip(header[1:], row[1:], strict=True):
            lines += _wrap(f"{name}: {cell}", width, "  ")
    return lines


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ") or [""]


def facts(pairs: Sequence[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """``name  value`` lines with aligned values; long values are wrapped under themselves."""
    size = max((len(name) for name, _ in pairs), default=0) + 2
    lines: list[str] = []
    for name, value in pairs:
        wrapped = textwrap.wrap(ascii_only(value), max(8, width - size)) or [""]
        lines.append((name.ljust(size) + wrapped[0]).rstrip())
        lines += [" " * size + more for more in wrapped[1:]]
    return lines


def panel_facts(result: EvalResult) -> list[tuple[str, str]]:
    """Which panel was played, by which model."""
    panel = result.panel
    kwargs = ", ".join(f"{key}={value!r}" for key, value in sorted(panel.kwargs.items()))
    tries = "once each" if panel.tries == 1 else f"{panel.tries} times each"
    at = "" if result.temperature is None else f" at temperature {result.temperature:g}"
    return [
        ("environment", panel.environment + (f" ({kwargs})" if kwargs else "")),
        ("split", f"{panel.split}, {panel.tasks} tasks {tries}, hash {panel.split_hash}"),
        ("model", f"{result.model}{at}"),
    ]


def result_lines(result: EvalResult, width: int = WIDTH) -> list[str]:
    """The whole result: panel, success with its interval, task types, costs, and what went wrong."""
    level = f"{100 * result.level:g} %"
    reward = result.mean_reward
    pairs = [
        *panel_facts(result),
        ("success %", f"{with_interval(result.success)} ({result.successes} of {result.episodes}, {level})"),
        ("mean reward", f"{plain(reward.value, 3)} [{plain(reward.low, 3)}, {plain(reward.high, 3)}]"),
        ("mean turns", plain(result.mean_turns)),
        ("invalid %", f"{percent(result.invalid_rate)} of turns"),
        ("cut short", f"{result.truncated} at the limit, {result.failed} failed, {result.restarts} restarts"),
    ]
    lines = facts(pairs, width)
    if any(result.by_type):
        rows = [
            [kind or "(none)", str(result.tasks_of_type(kind)), with_interval(interval)]
            for kind, interval in result.by_type.items()
        ]
        lines += ["", *grid(["task type", "tasks", "success %"], rows, width)]
    if result.pass_at_k:
        majority = result.majority_at_k
        header = ["k", "pass@k %", *(["majority@k %"] if majority else [])]
        rows = [
            [str(k), percent(value), *([percent(majority[k])] if majority else [])]
            for k, value in result.pass_at_k.items()
        ]
        lines += ["", *grid(header, rows, width)]
    return lines
