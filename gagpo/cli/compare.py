"""The commands ``compare`` and ``report``: several evaluations, and runs, next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from gagpo.base.options import Flag, Options
from gagpo.cli.field_options import request_values, with_field_options
from gagpo.cli.options import Json, print_json, say

if TYPE_CHECKING:
    from gagpo.eval.runs import Run

PASS_AT = "k of pass@k and the like, such as 1,8,64; by default 1, 2, 4, ... and all episodes of a task."


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(compare)
    app.command()(report)


def compare(
    results: Annotated[list[Path], typer.Argument(help="Two or more result files or run folders.")],
    split: Annotated[str | None, typer.Option(help="Split to compare in run folders; by default the first.")] = None,
    pass_at: Annotated[str | None, typer.Option("--pass-at", help=PASS_AT)] = None,
    figure: Annotated[Path | None, typer.Option(help="Of suites: draw this file, .png, .pdf or .svg.")] = None,
    as_json: Json = False,
) -> None:
    """Compare evaluations of the same tasks, or of the same suite, with paired tests."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.base.tables import text_width
    from gagpo.eval.suite_results import is_suite

    if any(is_suite(path) for path in results):
        _compare_suites(results, split, pass_at, figure, as_json)
        return
    if figure is not None:
        raise InvalidArgument(
            "--figure is for results of suites (gagpo eval --suite)",
            key="--figure",
            advice="runs: gagpo report --curves",
        )
    from gagpo.eval.at_k import read_ks
    from gagpo.eval.compare import compare_files

    comparison = compare_files(results, split, read_ks(pass_at))
    say(*comparison.lines(text_width()))
    if as_json:
        print_json(comparison.record())


def _compare_suites(
    results: Sequence[Path], split: str | None, pass_at: str | None, figure: Path | None, as_json: bool
) -> None:
    from gagpo.base.errors import InvalidArgument
    from gagpo.base.tables import text_width
    from gagpo.eval.suite_figure import plot_suites
    from gagpo.eval.suite_results import compare_suites

    for name, value in (("--split", split), ("--pass-at", pass_at)):
        if value is not None:
            raise InvalidArgument(
                f"{name} is not for results of suites", key=name, advice="compare the files of a task set instead"
            )
    comparison = compare_suites(results)
    say(*comparison.lines(text_width()))
    if figure is not None:
        say(f"wrote {plot_suites(comparison.suites, figure)}")
    if as_json:
        print_json(comparison.record())


class ReportRequest(Options):
    """What ``gagpo report`` writes and prints. Fields are its options, their descriptions its help."""

    runs: Annotated[list[str], Flag()] = Field(
        description="Run folders, LABEL=FOLDER, or files of results (JSON lines)."
    )
    baseline: Annotated[str | None, Flag()] = Field(
        None, description="Label of the baseline; `before` is each run before training."
    )
    split: Annotated[str | None, Flag()] = Field(None, description="Split to show; by default the first.")
    markdown: Annotated[bool, Flag("--markdown")] = Field(False, description="Print the table in Markdown.")
    latex: Annotated[bool, Flag("--latex")] = Field(False, description="Print the table in LaTeX (booktabs).")
    curves: Annotated[Path | None, Flag()] = Field(
        None,
        description="Draw the learning curves of all runs, averaged over seeds, into this file: .pdf, .svg or .png.",
    )
    y: Annotated[str | None, Flag()] = Field(
        None,
        description="Metric for --curves, such as entropy; by default success, and mean reward where it is graded.",
    )
    x: Annotated[str, Flag()] = Field("iteration", description="x axis of --curves: iteration or turns.")
    smooth: Annotated[int, Flag()] = Field(1, ge=1, description="For --curves: mean over this many iterations.")
    pass_at: Annotated[str | None, Flag()] = Field(None, description=PASS_AT)

    @property
    def files(self) -> list[Path]:
        """The files of results."""
        return [Path(run) for run in self.runs if run.endswith(".jsonl")]

    @property
    def folders(self) -> list[str]:
        """The run folders, some with a label."""
        return [run for run in self.runs if not run.endswith(".jsonl")]

    @property
    def has_table(self) -> bool:
        """Whether a table of all runs is printed: always, except for a single run."""
        return len(self.runs) > 1 or not self.folders or self.markdown or self.latex


@with_field_options(ReportRequest)
def report(*, as_json: Json = False, **options: object) -> None:
    """Write a page for each run (curves.png, report.html); for several runs, print one table with paired tests."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.eval.at_k import read_ks
    from gagpo.eval.curves import figure_format, plot_curves
    from gagpo.eval.report.report import write_report
    from gagpo.eval.runs import group_runs
    from gagpo.eval.study import curves_of, has_rows

    request = ReportRequest(**request_values(ReportRequest, options))
    if request.y is not None and request.curves is None:
        raise InvalidArgument(
            "--y needs a file to draw into", key="--y", advice="add --curves FILE.png (or .pdf, .svg)"
        )
    if request.curves:
        figure_format(request.curves)  # a wrong name is an error before any page is written
    ks = read_ks(request.pass_at)
    groups = group_runs(request.folders)
    pages = [str(write_report(run.folder, ks)) for group in groups.values() for run in group]
    say(*pages)
    record: dict[str, object] = {}
    if request.has_table and (request.files or not request.curves or has_rows(groups, request.split)):
        record = _print_study(request, groups, ks)
    elif request.has_table:  # curves of training need no evaluation
        say("no table: no run has been evaluated after training")
    if request.curves:
        drawn = curves_of(request.files)
        drawn |= {label: [*drawn.get(label, ()), *runs] for label, runs in groups.items()}
        say(str(plot_curves(drawn, request.curves, request.x, request.smooth, request.y)))
    if as_json:
        print_json({"pages": pages, **record} if record else pages)


def _print_study(
    request: ReportRequest, groups: Mapping[str, Sequence[Run]], ks: Sequence[int] | None
) -> dict[str, object]:
    """Print the table of several runs; return it as JSON-ready values. ks: the k of pass@k."""
    from gagpo.base.tables import text_width
    from gagpo.eval.compare import compare_files
    from gagpo.eval.study import study_of
    from gagpo.eval.study_at_k import measure_studies

    study = study_of(groups, request.files, request.baseline, request.split, ks)
    of_k = measure_studies(study, ks)
    if request.latex or request.markdown:
        tables = list(zip(study.tables(), study.captions(), strict=True))
        tables += [(measure.table(), measure.caption()) for measure in of_k]
        texts = [table.latex(caption) if request.latex else table.markdown() for table, caption in tables]
        say("\n\n".join("\n".join(lines) for lines in texts))
    else:
        width = text_width(most=100)
        runs = [run for group in groups.values() for run in group]
        one_seed_each = len(groups) == len(runs) > 1  # then tasks are paired, not seeds
        say(*study.lines(width))
        if not one_seed_each or request.files:
            say(*(line for measure in of_k for line in ("", *measure.lines(width))))
        if one_seed_each:
            say("", *compare_files([run.folder for run in runs], request.split, ks).lines(text_width()))
    at_k = {measure.name: measure.record() for measure in of_k}
    return {"study": study.record(), **({"at_k": at_k} if at_k else {})}
