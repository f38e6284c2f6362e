"""The figure of one run: training and its evaluations with their intervals in one plot, named at the lines' ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.base.errors import InvalidArgument
from gagpo.eval.curves import (
    COLOURS,
    GREY,
    INK,
    MARKERS,
    empty_figure,
    evaluation_points,
    literal,
    plain_axes,
    write_figure,
)
from gagpo.eval.measures import SUCCESS, Measure, measures_in
from gagpo.eval.runs import Run
from gagpo.eval.statistics import Interval
from gagpo.runs.register import find

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAINING = "training"
WIDTH, HEIGHT = 6.4, 3.8  # inches of one plot
NEAREST = 0.065  # of the axis between two names at its right end, so that they can be read


@dataclass(frozen=True)
class RunLine:
    """A line of the plot.

    name: at its end.
    intervals: of the points of an evaluation; None for training.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[Interval] | None = None


def plot_run(run: Run, output: Path) -> Path:
    """Draw the success of a run in training and in its evaluations, and its mean rewards where they are graded.

    output: the suffix is the format, ``.pdf``, ``.svg`` or ``.png``.

    Raises: InvalidArgument if there is nothing to draw.
    """
    plots = {measure: lines for measure in measures_in(run.headline) if (lines := run_lines(run, measure))}
    if not plots:
        raise InvalidArgument(f"there is no curve to draw: {run.name} has neither iterations nor evaluations")
    figure = empty_figure(WIDTH * len(plots), HEIGHT)
    axes = figure.subplots(1, len(plots), squeeze=False)[0]
    for axis, (measure, lines) in zip(axes, plots.items(), strict=True):
        _draw(axis, measure, lines)
    evaluated = [line for lines in plots.values() for line in lines if line.intervals]
    about = ["iterations"]
    if evaluated:
        about.append("whiskers: 95 % interval over tasks")
    if any(line.x[0] == 0 for line in evaluated):
        about.append("first point: before training")
    figure.suptitle(literal(run.label), x=0.01, ha="left", fontsize=10, color=INK)
    figure.supxlabel("; ".join(about), fontsize=8, color=GREY)
    return write_figure(figure, output)


def run_lines(run: Run, measure: Measure) -> list[RunLine]:
    """Training, then the evaluations on each split; a lone evaluation is a line of one point."""
    lines = []
    x, y = run.series(measure.metric)
    if x:
        lines.append(RunLine(TRAINING, x, y))
    for split in run.splits():
        ((positions, rates),) = evaluation_points([run], split, "iteration", measure)
        if positions:
            lines.append(RunLine(split, positions, [rate.value for rate in rates], rates))
    return lines


def _draw(axis: Axes, measure: Measure, lines: Sequence[RunLine]) -> None:
    is_share = measure == SUCCESS
    scale = 100.0 if is_share else 1.0
    colours = iter(zip(COLOURS, MARKERS, strict=True))
    ends = []
    for line in lines:
        values = [scale * value for value in line.y]
        if line.intervals is None:
            colour = GREY
            axis.plot(line.x, values, color=colour, linewidth=1.2, alpha=0.75)
        else:
            colour, marker = next(colours, (INK, "o"))
            bounds = ([scale * rate.low for rate in line.intervals], [scale * rate.high for rate in line.intervals])
            axis.vlines(line.x, *bounds, color=colour, linewidth=1.2, alpha=0.6)
            axis.plot(line.x, values, color=colour, linewidth=1.8, marker=marker, markersize=5)
        ends.append((line.x[-1], values[-1], f"{line.name} {values[-1]:.3g}{' %' if is_share else ''}", colour))
    name = "success, %" if is_share else find(measure.metric).caption
    axis.set_title(name, loc="left", fontsize=9, color=INK)
    plain_axes(axis)
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=6)  # type: ignore[call-arg]
    if is_share:
        axis.set_ylim(-2, 102)
    _name_ends(axis, ends)


def _name_ends(axis: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names right of the lines' last points, moved apart where they would overlap.

    ends: x, y, name and colour of each line.
    """
    low, high = axis.get_ylim()
    right = max(x for x, _, _, _ in ends)
    least = NEAREST * (high - low)
    height = low - least
    for _, y, name, colour in sorted(ends, key=lambda end: end[1]):
        height = max(y, height + least)
        axis.annotate(
            literal(name), (right, height), (8, 0), textcoords="offset points", va="center", fontsize=8, color=colour,
            annotation_clip=False,
        )  # fmt: skip
