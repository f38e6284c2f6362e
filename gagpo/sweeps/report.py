"""The report of a sweep: one table of all finished runs, with intervals over seeds and paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.eval.compare import Comparison, compare_results
from gagpo.eval.curves import plot_curves
from gagpo.eval.report import report as run_report
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import Run, load_run
from gagpo.eval.study import RunRow, Study, row_of
from gagpo.runs.reading import BadResult
from gagpo.sweeps.grid import Sweep, SweepRun
from gagpo.sweeps.status import RunStatus


@dataclass(frozen=True)
class SweepReport:
    """The comparison of the finished runs.

    study: over seeds; the first values of the command line are the baseline.
    tasks: the same paired by task, where every method has one run: a single seed has no interval.
    """

    study: Study
    tasks: Comparison | None = None

    def lines(self, width: int, narrow: int) -> list[str]:
        """In ASCII. width: of the table over seeds. narrow: of the comparison by task."""
        by_task = ["", *self.tasks.lines(narrow)] if self.tasks else []
        return [*self.study.lines(width), *by_task]

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        return {"study": self.study.record(), **({"compare": self.tasks.record()} if self.tasks else {})}

    def markdown(self, sweep: Sweep, statuses: Sequence[RunStatus]) -> str:
        """The page ``report.md``."""
        blocks = [
            [f"# {sweep.folder.name}"],
            self.study.table().markdown(),
            [f"- {note}" for note in self.study.notes()],
        ]
        if self.tasks:
            blocks += [*(table.markdown() for table in self.tasks.difference_tables()), [self.tasks.note]]
        rows = [f"| {status.run.name} | {status.state} | {status.iteration} |" for status in statuses]
        blocks.append(["| run | state | iterations |", "|---|---|---|", *rows])
        blocks.append(["![curves](curves.png)"])
        return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def make_report(statuses: Sequence[RunStatus]) -> SweepReport | None:
    """Compare the finished runs; None if none was evaluated after training."""
    loaded = [(status.run, load_run(status.run.folder)) for status in statuses if status.state == "finished"]
    rows = [row for sweep_run, run in loaded if (row := _row(sweep_run, run))]
    if not rows:
        return None
    labels = [row.label for row in rows]
    results = {sweep_run.label: result for sweep_run, run in loaded if (result := _result(run))}
    single = len(results) == len(labels) == len(set(labels)) > 1
    return SweepReport(Study.of(rows), compare_results(results) if single else None)


def write_missing_reports(statuses: Sequence[RunStatus]) -> None:
    """Write the reports of finished runs whose process was killed before it had drawn its own."""
    for status in statuses:
        if status.state == "finished" and not run_report.has_report(status.run.folder):
            with suppress(BadResult):  # a sweep does not fail for one page
                run_report.write_report(status.run.folder)


def write_report(sweep: Sweep, statuses: Sequence[RunStatus], report: SweepReport) -> list[Path]:
    """Write ``report.md`` and ``curves.png`` into the sweep's folder; returns those that were written."""
    groups: dict[str, list[Run]] = {}
    for status in statuses:
        if status.state == "finished":
            groups.setdefault(status.run.label, []).append(load_run(status.run.folder))
    page = sweep.folder / "report.md"
    durable.write_text(page, report.markdown(sweep, statuses))
    try:
        return [page, plot_curves(groups, sweep.folder / "curves.png")]
    except InvalidArgument:  # runs without iterations have no curve
        return [page]


def _row(sweep_run: SweepRun, run: Run) -> RunRow | None:
    row = row_of(sweep_run.label, run)
    # The seed of the settings: a name that ends in another number does not end in a seed.
    return row and row.model_copy(update={"seed": sweep_run.settings.seed})


def _result(run: Run) -> EvalResult | None:
    evaluation = run.last()
    return evaluation.result if evaluation and evaluation.stage == "after" else None
