"""Learning curves as a figure: one line per method, the mean over its seeds, with a band for their range."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.terminal import printable
from gagpo.eval.measures import SUCCESS, Measure, measures_in
from gagpo.eval.runs import Run, trailing_mean
from gagpo.eval.statistics import Interval
from gagpo.runs.headline import SUCCESS_RATE, joint
from gagpo.runs.register import find

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
"""Suffixes of figures; PDF and SVG for papers, since they are drawn as lines."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colour-blind safe palette, without yellow."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
X_KEYS = {"iteration": "iteration", "turns": "turns_total"}
X_NAMES = {"iteration": "iterations", "turns": "environment turns"}
TITLE = 54  # characters of a line of a plot's title
INK = "#333333"
GREY = "#666666"
FAINT = "#d9d9d9"

Line = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest value over seeds, float64[K], on the range of x that all seeds cover."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class ChartPanel:
    """One plot of the figure.

    lines: one line per seed, by label.
    intervals: of the points in ``lines``; None if they are not evaluations.
    unit: of y. A ``share`` is drawn in per cent.
    bounded: whether y is drawn from 0 to 100 per cent.
    """

    title: str
    lines: Mapping[str, list[Line]]
    intervals: Mapping[str, list[list[Interval]]] | None = None
    unit: str = "share"
    bounded: bool = True

    @property
    def scale(self) -> float:
        """The factor of what is drawn."""
        return 100.0 if self.unit == "share" else 1.0


def band(lines: Sequence[Line], pointwise: bool = False) -> Band | None:
    """Interpolate one line per seed onto a common x and aggregate them; None if they share no x.

    pointwise: aggregate the k-th points of all lines, at their mean x, if all have equally many.
    """
    lines = [line for line in lines if line[0]]
    if not lines:
        return None
    if pointwise and len({len(x) for x, _ in lines}) == 1:
        points = np.array([x for x, _ in lines]).mean(axis=0)
        values = np.array([y for _, y in lines])
    else:
        start, stop = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
        points = np.array(sorted({value for x, _ in lines for value in x if start <= value <= stop}))
        values = np.array([np.interp(points, x, y) for x, y in lines])
    return Band(points, values.mean(axis=0), values.min(axis=0), values.max(axis=0)) if len(points) else None


def training_lines(runs: Sequence[Run], x: str, smooth: int = 1, metric: str = SUCCESS_RATE) -> list[Line]:
    """A metric of training of each run, as a trailing mean over ``smooth`` iterations."""
    lines = [run.series(metric, X_KEYS[x]) for run in runs]
    return [(xs, trailing_mean(ys, smooth)) for xs, ys in lines]


def evaluation_points(
    runs: Sequence[Run], split: str, x: str, measure: Measure = SUCCESS
) -> list[tuple[list[float], list[Interval]]]:
    """The x of each run's evaluations on ``split``, and a measure of them."""
    series = []
    for run in runs:
        points: dict[float, Interval] = {}
        for evaluation in run.trained(split):  # the later of two evaluations at one x counts
            at = None if evaluation.iteration is None else run.at(evaluation.iteration, X_KEYS[x])
            if at is not None:
                points[at] = evaluation.result.estimate(measure)
        series.append((sorted(points), [points[at] for at in sorted(points)]))
    return series


def chart_panels(groups: Mapping[str, Sequence[Run]], x: str, smooth: int) -> list[ChartPanel]:
    """A plot of training, and one for each split that was evaluated at least twice.

    Of mean rewards, of success, or first of rewards and then of success: see :data:`gagpo.runs.headline.Headline`.
    """
    headline = joint(run.outcomes for group in groups.values() for run in group).headline
    return [panel for measure in measures_in(headline) for panel in _panels_of(groups, x, smooth, measure)]


def _panels_of(groups: Mapping[str, Sequence[Run]], x: str, smooth: int, measure: Measure) -> list[ChartPanel]:
    """The plots of the mean reward or of success."""
    panels: list[ChartPanel] = []
    metric = find(measure.metric)
    panel = partial(ChartPanel, unit=metric.unit, bounded=measure == SUCCESS)
    training = {label: training_lines(group, x, smooth, metric.name) for label, group in groups.items()}
    if any(line[0] for lines in training.values() for line in lines):
        panels.append(panel(f"{metric.caption}{_window(smooth)}", training))
    for split in dict.fromkeys(split for group in groups.values() for run in group for split in run.splits()):
        points = {label: evaluation_points(group, split, x, measure) for label, group in groups.items()}
        lines = {label: [(at, [r.value for r in rates]) for at, rates in group] for label, group in points.items()}
        if any(len(line[0]) > 1 for seeds in lines.values() for line in seeds):
            intervals = {label: [rates for _, rates in group] for label, group in points.items()}
            panels.append(panel(f"{measure.name} on {split}{_missing(lines)}", lines, intervals))
    return panels


def metric_panel(groups: Mapping[str, Sequence[Run]], metric: str, x: str, smooth: int) -> ChartPanel:
    """A plot of one metric of training.

    Raises:
        InvalidArgument: no run has logged it over x.
    """
    runs = [run for group in groups.values() for run in group]
    names = sorted({name for run in runs for row in run.metrics for name in row})
    if metric not in names:
        raise InvalidArgument(
            f"--y {metric!r:.60}: no run has logged it",
            key="--y",
            advice=f"{hint(metric, names)}; logged: {', '.join(names) or 'nothing'}",
        )
    lines = {label: training_lines(group, x, smooth, metric) for label, group in groups.items()}
    if not any(line[0] for seeds in lines.values() for line in seeds):
        raise InvalidArgument(f"there is no curve to draw: no run has {metric!r} over {X_KEYS[x]!r}")
    about = find(metric)
    return ChartPanel(
        f"{about.caption}{_window(smooth)}", lines, unit=about.unit, bounded=metric.partition("/")[0] == SUCCESS_RATE
    )


def plot_curves(
    groups: Mapping[str, Sequence[Run]],
    output: Path,
    x: str = "iteration",
    smooth: int = 1,
    metric: str | None = None,
) -> Path:
    """Draw runs by label into one figure; return its path. Runs of one label are seeds of one method.

    output: the suffix is the format, ``.pdf``, ``.svg`` or ``.png``.
    x: ``iteration`` or ``turns``.
    smooth: window of the trailing mean, in iterations.
    metric: a metric of training to draw alone; by default the success in training and on each split, below the mean
        reward where rewards are graded.

    Raises:
        InvalidArgument: there is nothing to draw, or x, the metric or the format is unknown.
    """
    figure_format(output)
    if x not in X_KEYS:
        raise InvalidArgument(f"x must be one of {', '.join(X_KEYS)}, got {x!r}", key="x")
    from matplotlib.lines import Line2D

    panels = chart_panels(groups, x, smooth) if metric is None else [metric_panel(groups, metric, x, smooth)]
    if not panels:
        raise InvalidArgument(f"there is no curve to draw: no run has {SUCCESS_RATE!r} over {X_KEYS[x]!r}")
    names = {label: label if metric is None else f"{label}{_drawn(panels[0].lines[label])}" for label in groups}
    legend = 0.0 if metric is None else 0.08 * min(60, max(map(len, names.values())))  # inches more for its names
    rows = _rows_of(panels)
    columns = max(map(len, rows))
    figure = empty_figure(1.8 + 3.4 * columns + legend, 3.4 * len(rows))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    count = len(COLOURS)  # further methods have the same colours in broken lines
    styles = {
        label: (COLOURS[i % count], MARKERS[i % count], DASHES[i // count % len(DASHES)])
        for i, label in enumerate(groups)
    }
    for row_axes, row in zip(axes, rows, strict=True):
        for axis, panel in zip(row_axes, row, strict=False):
            _draw_panel(axis, panel, styles)
            axis.set_xlabel(X_NAMES[x], color=INK)
        for axis in row_axes[len(row) :]:
            axis.set_axis_off()
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=dashes, label=literal(names[label]))
        for label, (colour, marker, dashes) in styles.items()
    ]
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
    figure.supxlabel(_legend(groups, panels), fontsize=8, color=GREY)
    return write_figure(figure, output)


def _rows_of(panels: Sequence[ChartPanel]) -> list[list[ChartPanel]]:
    """Plots of rewards above those of success; other plots in one row."""
    rows = [[panel for panel in panels if panel.bounded == bounded] for bounded in (False, True)]
    return [row for row in rows if row]


def empty_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches, without matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_format(path: Path) -> str:
    """The format of a figure by the suffix of its file: ``pdf``, ``svg`` or ``png``.

    Raises:
        InvalidArgument: another suffix.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InvalidArgument(
            f"unknown format of a figure {str(path)!r:.200}", advice="end its name in .pdf, .svg or .png"
        )
    return suffix


def write_figure(figure: Figure, output: Path) -> Path:
    """Write the file whole or not at all, in the format of its suffix; equal figures give equal files."""
    import matplotlib

    file_format = figure_format(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Dates, versions and random ids would make equal figures differ. Type 42 fonts are what journals accept.
    no_date = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    context = matplotlib.rc_context({"svg.hashsalt": "gagpo", "pdf.fonttype": 42})
    with context, durable.replacing(output, flushed=False) as target:
        figure.savefig(target, format=file_format, metadata=no_date[file_format])
    return output


def plain_axes(axis: Axes) -> None:
    """Style axes fainter than the data."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#999999")
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8, length=3)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def literal(text: str) -> str:
    """``text`` in characters that can be drawn, with dollar signs escaped, which matplotlib reads as formulas."""
    return printable(text).replace("$", r"\$")


def _legend(groups: Mapping[str, Sequence[Run]], panels: Sequence[ChartPanel]) -> str:
    """What lines, bands and whiskers mean."""
    seeds = {len(group) for group in groups.values()}
    handles = []
    if max(seeds) > 1:
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        handles.append(f"line: mean of {count} seeds; band: lowest to highest seed")
    if min(seeds) == 1 and any(panel.intervals for panel in panels):
        handles.append("whiskers: interval over tasks")
    return "; ".join(handles)


def _window(smooth: int) -> str:
    return f", mean of {smooth} iterations" if smooth > 1 else ""


def _drawn(seeds: Sequence[Line]) -> str:
    """How many seeds of a method have logged a metric, if some have not."""
    count = sum(bool(x) for x, _ in seeds)
    if count == len(seeds):
        return ""
    return f" ({count} of {len(seeds)} seeds)" if count else " (not logged)"


def _missing(lines: Mapping[str, Sequence[Line]]) -> str:
    """How many seeds a panel shows, if some are missing."""
    drawn = {(sum(bool(x) for x, _ in seeds), len(seeds)) for seeds in lines.values()}
    partly = [(some, of) for some, of in sorted(drawn) if 0 < some < of]
    return f" ({partly[0][0]} of {partly[0][1]} seeds)" if partly else ""


def _draw_panel(axis: Axes, panel: ChartPanel, styles: Mapping[str, tuple[str, str, str]]) -> None:
    evaluated = panel.intervals is not None
    for label, seeds in panel.lines.items():
        colour, marker, dashes = styles[label]
        summed = band(seeds, pointwise=evaluated)
        if summed is None:
            continue
        if len(seeds) > 1:
            low, high = panel.scale * summed.low, panel.scale * summed.high
            axis.fill_between(summed.x, low, high, color=colour, alpha=0.15, linewidth=0)
        mark = marker if evaluated else None
        mean = panel.scale * summed.mean
        axis.plot(summed.x, mean, dashes, color=colour, linewidth=1.8, marker=mark, markersize=5)
        if panel.intervals and len(seeds) == 1:
            (rates,) = panel.intervals[label]
            bounds = ([panel.scale * rate.low for rate in rates], [panel.scale * rate.high for rate in rates])
            axis.vlines(seeds[0][0], *bounds, color=colour, linewidth=1, alpha=0.6)
    title = f"{panel.title}, %" if panel.bounded else panel.title
    axis.set_title(literal(textwrap.fill(title, TITLE)), loc="left", fontsize=10, color=INK)
    plain_axes(axis)
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=5)  # type: ignore[call-arg]
    if panel.bounded:
        axis.set_ylim(0, 100)
    else:
        axis.set_ylabel("%" if panel.unit == "share" else panel.unit, color=INK)
