"""The figure of suites: success on every task set with its interval, one colour for each result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gagpo.eval.curves import COLOURS, FAINT, GREY, INK, MARKERS, empty_figure, literal, plain_axes, write_figure
from gagpo.eval.suite_results import MEAN, SuiteResult

WIDTH = 6.4  # inches
ROW = 0.22  # inches of one result
MARGINS = 1.2  # inches above and below the rows


def plot_suites(suites: Mapping[str, SuiteResult], output: Path) -> Path:
    """Draw the success rates of suites' results, one row for each result in each task set.

    suites: by label; all have the same task sets.
    output: the suffix is the format, ``.pdf``, ``.svg`` or ``.png``.
    """
    names = [*next(iter(suites.values())).results, MEAN]
    step = len(suites) + 1
    figure = empty_figure(WIDTH, MARGINS + ROW * step * len(names))
    axis = figure.subplots()
    for number, (label, suite) in enumerate(suites.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        intervals = [*(result.success for result in suite.results.values()), suite.mean]
        heights = [step * row + number for row in range(len(names))]
        axis.hlines(heights, [100 * each.low for each in intervals], [100 * each.high for each in intervals],
                    color=colour, linewidth=1.6, alpha=0.6)  # fmt: skip
        values = [100 * each.value for each in intervals]
        axis.plot(values, heights, marker, color=colour, markersize=5, linestyle="none", label=literal(label))
        for value, height in zip(values, heights, strict=True):
            text = f"{value:.1f} %"
            axis.annotate(text, (103, height), va="center", fontsize=8, color=colour, annotation_clip=False)
    plain_axes(axis)
    axis.set_xlim(-2, 102)
    axis.set_ylim(step * len(names) - 1, -1)  # the first task set on top
    axis.set_yticks(
        [step * row + (len(suites) - 1) / 2 for row in range(len(names))], [literal(name) for name in names]
    )
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color=FAINT, linewidth=0.6)
    axis.set_title("success, %", loc="left", fontsize=9, color=INK)
    if len(suites) > 1:
        figure.legend(loc="outside upper right", ncols=min(3, len(suites)), fontsize=8, frameon=False)
    tasks = [result.task_set.tasks for result in next(iter(suites.values())).results.values()]
    count = f"{min(tasks)}" if len(set(tasks)) == 1 else f"{min(tasks)} to {max(tasks)}"
    figure.supxlabel(f"lines: 95 % interval over tasks ({count} for each task set)", fontsize=8, color=GREY)
    return write_figure(figure, output)
