"""Learning curves as a PNG: one line per method, the mean over its seeds, with the range of the seeds as a band."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import WIDTH, Table, ascii_only
from gagpo.eval.runs import Run, group_runs, trailing_mean
from gagpo.eval.statistics import Interval, area_under_curve, mean_over_seeds
from gagpo.eval.summary import percent, with_interval
from gagpo.runs.register import Metric, find

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, distinguishable with every common colour blindness; yellow is left out on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
X_KEYS = {"iteration": "iteration", "turns": "turns_total"}
X_NAMES = {"iteration": "iterations", "turns": "environment turns"}
LONGEST_LABEL = 24  # characters; longer ones are cut
ACROSS = 5  # small pictures side by side
INK, FAINT = "#333333", "#d9d9d9"

Line = tuple[list[float], list[float]]
Runs = Sequence[str | Path] | Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest of several seeds on the stretch of x that all of them cover."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(lines: Sequence[Line], pointwise: bool = False) -> Band | None:
    """Bring one line per seed onto common x (linear in between) and sum them up; None where they share no x.

    ``pointwise`` takes the k-th points of all lines together, at their mean x, where all have equally many.
    """
    lines = [line for line in lines if line[0]]
    if not lines:
        return None
    if pointwise and len({len(x) for x, _ in lines}) == 1:
        xs, ys = np.array([x for x, _ in lines]), np.array([y for _, y in lines])
        return Band(xs.mean(axis=0), ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0))
    start, stop = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    points = sorted({value for x, _ in lines for value in x if start <= value <= stop})
    if not points:
        return None
    values = np.array([np.interp(points, x, y) for x, y in lines])
    return Band(np.array(points), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def training_lines(runs: Sequence[Run], metric: str, x: str, smooth: int = 1) -> list[Line]:
    """One line per run of a metric of the training iterations, as a trailing mean over ``smooth`` of them."""
    lines = [run.series(metric, X_KEYS[x]) for run in runs]
    return [(xs, trailing_mean(ys, smooth)) for xs, ys in lines]


def evaluation_points(runs: Sequence[Run], split: str, x: str) -> list[tuple[list[float], list[Interval]]]:
    """Per run, where it was evaluated on ``split`` and its success rates there, from before training to after it."""
    found = []
    for run in runs:
        # Of two evaluations at one place the later one stands.
        points: dict[float, Interval] = {}
        for one in run.trained(split):  # where nobody knows how far the run was: left out
            place = None if one.iteration is None else run.at(one.iteration, X_KEYS[x])
            if place is not None:
                points[place] = one.result.success
        found.append((sorted(points), [points[place] for place in sorted(points)]))
    return found


def plot_curves(runs: Runs, output: Path, x: str = "iteration", metric: str = "success_rate", smooth: int = 1) -> Path:
    """Draw run folders (``LABEL=FOLDER`` or a folder), or runs by label, into one PNG and return its path.

    One panel shows ``metric`` of the training iterations, one more each split evaluated at least twice. Runs of one
    label are seeds of one method. ``x`` is ``iteration`` or ``turns``; ``smooth`` is the window of a trailing mean.
    Raises ValueError when nothing can be drawn.
    """
    groups = _grouped(runs, x)
    panels = chart_panels(groups, x, metric, smooth)
    if not panels:
        known = sorted({key for group in groups.values() for run in group for row in run.metrics for key in row})
        raise InvalidArgument(f"no run has {metric!r} over {X_KEYS[x]!r}; known metrics: {', '.join(known) or 'none'}")
    each = 3.2 + 0.09 * max(min(len(label), LONGEST_LABEL) for label in groups)  # inches; names stand beside the lines
    figure = _figure(max(6.0, each * len(panels)), 3.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    styles = {label: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(groups)}
    for axis, panel in zip(axes, panels, strict=True):  # all share the x that was asked for
        _draw_panel(axis, panel, styles)
        axis.set_xlabel(X_NAMES[x], color=INK)
    figure.supxlabel(_legend(groups, panels), fontsize=8, color="#666666")
    return _write(figure, output)


def _grouped(runs: Runs, x: str) -> Mapping[str, Sequence[Run]]:
    if x not in X_KEYS:
        raise InvalidArgument(f"x must be one of {', '.join(X_KEYS)}, got {x!r}")
    return runs if isinstance(runs, Mapping) else group_runs(runs)


def _figure(width: float, height: float) -> Figure:
    """An empty picture in inches: no global state, no display, whatever the user's matplotlibrc says."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write(figure: Figure, output: Path) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    with durable.replacing(output, flushed=False) as part:
        figure.savefig(part, format="png", metadata={"Software": None})
    return output


def plot_each(runs: Runs, output: Path, x: str = "iteration", metric: str = "success_rate", smooth: int = 1) -> Path:
    """A small picture of ``metric`` while training for every label but the first, whose mean is the grey line in all.

    For more methods than one picture can hold; arguments as for :func:`plot_curves`.
    """
    groups = _grouped(runs, x)
    summed = {label: band(training_lines(group, metric, x, smooth)) for label, group in groups.items()}
    found = {label: one for label, one in summed.items() if one is not None}
    if len(found) < 2:
        raise InvalidArgument(f"at least two methods with {metric!r} over {X_KEYS[x]!r} are needed, got {len(found)}")
    (first, reference), *others = found.items()
    shown = find(metric)
    scale = 100.0 if shown.share else 1.0
    columns = min(ACROSS, len(others))
    rows = -(-len(others) // columns)
    figure = _figure(2.1 * columns, 1.55 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    for (label, one), axis in zip(others, axes, strict=False):
        # The first method lies below, in grey; the band of the seeds below their mean.
        axis.plot(reference.x, reference.mean * scale, color="#aaaaaa", linewidth=1.4)
        axis.fill_between(one.x, one.low * scale, one.high * scale, color=COLOURS[0], alpha=0.15, linewidth=0)
        axis.plot(one.x, one.mean * scale, color=COLOURS[0], linewidth=1.6)
        axis.set_title(label.replace("$", r"\$"), loc="left", fontsize=9, color=INK)
        _quiet(axis)
    for axis in list(axes):
        axis.set_visible(False)  # what the last row does not need
    unit = ", %" if shown.share else ""
    legend = f"{shown.caption}{unit} over {X_NAMES[x]}; grey: {first}; band: lowest to highest seed"
    figure.supxlabel(legend, fontsize=8, color="#666666")
    return _write(figure, output)


def _legend(groups: Mapping[str, Sequence[Run]], panels: Sequence[ChartPanel]) -> str:
    """What lines, bands and whiskers stand for, as far as there are any."""
    seeds = {len(group) for group in groups.values()}
    parts = []
    if max(seeds) > 1:
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        parts.append(f"line: mean of {count} seeds; band: lowest to highest seed")
    if min(seeds) == 1 and any(panel.evaluations for panel in panels):
        parts.append("whiskers: interval over tasks")
    return "; ".join(parts)


@dataclass(frozen=True)
class ChartPanel:
    """One picture. share: drawn in per cent. evaluations: points are marked, those of a lone seed with intervals."""

    title: str
    share: bool
    lines: Mapping[str, list[Line]]
    evaluations: Mapping[str, list[tuple[list[float], list[Interval]]]] | None = None


def chart_panels(groups: Mapping[str, Sequence[Run]], x: str, metric: str, smooth: int) -> list[ChartPanel]:
    """The panel of the training iterations, and one of every split that was evaluated at least twice."""
    panels: list[ChartPanel] = []
    training = {label: training_lines(group, metric, x, smooth) for label, group in groups.items()}
    if any(line[0] for lines in training.values() for line in lines):
        window = f", mean of {smooth} iterations" if smooth > 1 else ""
        panels.append(ChartPanel(find(metric).caption + window, find(metric).share, training))
    splits = [split for group in groups.values() for run in group for split in run.splits()]
    for split in dict.fromkeys(splits):
        # A split that was evaluated once has a point, but no curve.
        points = {label: evaluation_points(group, split, x) for label, group in groups.items()}
        lines = {label: [(at, [r.value for r in rates]) for at, rates in group] for label, group in points.items()}
        if any(len(line[0]) > 1 for group_lines in lines.values() for line in group_lines):
            panels.append(ChartPanel(f"success on {split}{_missing(lines)}", True, lines, points))
    return panels


def _missing(lines: Mapping[str, Sequence[Line]]) -> str:
    """Of how many seeds a panel knows something, where those are not all that the legend counts."""
    drawn = {(sum(bool(x) for x, _ in seeds), len(seeds)) for seeds in lines.values()}
    partly = [(some, of) for some, of in sorted(drawn) if 0 < some < of]
    return f" ({partly[0][0]} of {partly[0][1]} seeds)" if partly else ""


def _draw_panel(axis: Axes, panel: ChartPanel, styles: Mapping[str, tuple[str, str]]) -> None:
    scale = 100.0 if panel.share else 1.0
    marked = panel.evaluations is not None
    ends: list[tuple[float, float, str, str]] = []
    for label, seeds in panel.lines.items():
        colour, marker = styles[label]
        summed = band(seeds, pointwise=marked)
        if summed is None:  # its seeds share no stretch
            continue
        if len(seeds) > 1:
            axis.fill_between(summed.x, summed.low * scale, summed.high * scale, color=colour, alpha=0.15, linewidth=0)
        axis.plot(
            summed.x, summed.mean * scale, color=colour, linewidth=1.8, marker=marker if marked else None, markersize=5
        )
        if panel.evaluations and len(seeds) == 1:
            ((places, rates),) = panel.evaluations[label]
            bounds = ([rate.low * scale for rate in rates], [rate.high * scale for rate in rates])
            axis.vlines(places, *bounds, color=colour, linewidth=1, alpha=0.6)
        ends.append((float(summed.x[-1]), float(summed.mean[-1]) * scale, label, colour))
    # Not dollars: matplotlib would set what stands between two of them as a formula.
    axis.set_title(
        f"{panel.title}{', %' if panel.share else ''}".replace("$", r"\$"), loc="left", fontsize=10, color=INK
    )
    _quiet(axis)
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=5)  # type: ignore[call-arg]
    if panel.share:
        axis.set_ylim(0, 100)
    _label_ends(axis, ends)


def _quiet(axis: Axes) -> None:
    """Nothing louder than the data."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#999999")
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8, length=3)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _label_ends(axis: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each line's name beside its end, moved apart where they would overlap; no legend to look up."""
    low, high = axis.get_ylim()
    step = (high - low) * 0.062
    right = max((x for x, _, _, _ in ends), default=0.0)
    places: list[float] = []
    for _, y, _, _ in sorted(ends, key=lambda end: end[1]):
        places.append(max(y, places[-1] + step) if places else y)
    overflow = max(0.0, places[-1] - (high - step / 2)) if places else 0.0
    for place, (_, _, label, colour) in zip(places, sorted(ends, key=lambda end: end[1]), strict=True):
        # In the colour of its line, right of the last point.
        name = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 2] + ".."
        axis.annotate(
            name.replace("$", r"\$"),
            (right, place - overflow),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )


def curve_lines(
    runs: Sequence[str | Path], x: str = "iteration", metric: str = "success_rate", width: int = WIDTH
) -> list[str]:
    """The curves in numbers: per label, seeds, mean height and last value of ``metric``, over the x all runs cover."""
    groups = group_runs(runs)
    lines = {label: [one for one in training_lines(group, metric, x) if one[0]] for label, group in groups.items()}
    lines = {label: group for label, group in lines.items() if group}
    if not lines:
        raise InvalidArgument(f"no run has {metric!r} over {X_KEYS[x]!r}")
    stop = min(xs[-1] for group in lines.values() for xs, _ in group)
    shown, rows = find(metric), []
    for label, group in lines.items():
        # All are cut at the x that the shortest has reached, and compared up to there.
        cut = [_until(line, stop) for line in group]
        heights, lasts = [area_under_curve(*line) for line in cut], [line[1][-1] for line in cut]
        rows.append([label, str(len(cut)), _over_seeds(heights, shown), _over_seeds(lasts, shown)])
    unit = " %" if shown.share else ""
    about = textwrap.wrap(ascii_only(f"{metric} over {X_NAMES[x]}, up to {stop:g}, which every run reached"), width)
    return [*about, "", *Table(["method", "seeds", f"mean{unit}", f"last{unit}"], rows).lines(width)]


def _over_seeds(values: Sequence[float], metric: Metric) -> str:
    mean = mean_over_seeds(values)
    if metric.share:
        return with_interval(mean) if len(values) > 1 else percent(mean.value)
    return f"{mean.value:.3g}" + (f" [{mean.low:.3g}, {mean.high:.3g}]" if len(values) > 1 else "")


def _until(line: Line, stop: float) -> Line:
    xs, ys = line
    kept = [value for value in xs if value < stop]
    return [*kept, stop], [*ys[: len(kept)], float(np.interp(stop, xs, ys))]
