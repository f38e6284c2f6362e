"""pass@k and the other measures of k episodes in a study: means over seeds, intervals and paired t tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import WIDTH, Table
from gagpo.eval.at_k import MEASURES, PASS, Measure
from gagpo.eval.statistics import Interval, holm
from gagpo.eval.study import BEFORE, Method, RunRow, Study, spread
from gagpo.eval.summary import p_value, unit_name


@dataclass(frozen=True)
class MeasureStudy:
    """One measure of k episodes for all methods.

    methods: by k, with that measure in place of the success after training. Their ``p_holm`` is corrected for all
        methods and all k.
    baseline: as in :class:`Study`.
    """

    measure: Measure
    methods: dict[int, tuple[Method, ...]]
    baseline: str

    def table(self) -> Table:
        """One row per method and k."""
        header = ["", "k", unit_name(self.measure), f"minus {self.baseline}", "p (Holm)"]
        rows = []
        for index, first in enumerate(next(iter(self.methods.values()))):
            for k, methods in self.methods.items():
                method = methods[index]
                p = "" if method.p_holm is None else p_value(method.p_holm)
                rows.append([first.label, str(k), self._cell(method.mean("after")), self._cell(method.gap, True), p])
        return Table(header, rows)

    def lines(self, width: int = WIDTH) -> list[str]:
        """The table in ASCII, at most ``width`` columns wide."""
        table = self.table()
        header = ["difference" if name.startswith("minus ") else name for name in table.header]
        rows = [[cell.replace("±", "+-") for cell in row] for row in table.rows]
        tables = replace(table, header=header, rows=rows).split(width, keys=2)
        return [line for narrow in tables for line in ("", *narrow.lines(width))][1:]

    def caption(self, study: Study) -> str:
        """The caption of :meth:`table` in a paper. study: of the same runs."""
        return study.caption(f"{self.measure.name} in per cent" if self.measure.share else self.measure.name)

    def record(self) -> dict[str, object]:
        """JSON-ready values by k and method."""
        return {
            str(k): {
                method.label: {
                    "mean": method.mean("after").record(),
                    "gap": method.gap.record() if method.gap else None,
                    "p": method.p,
                    "p_holm": method.p_holm,
                }
                for method in methods
            }
            for k, methods in self.methods.items()
        }

    def _cell(self, interval: Interval | None, signed: bool = False) -> str:
        return spread(interval, signed, scale=100 if self.measure.share else 1) if interval else ""


def measure_studies(study: Study, pass_at: Sequence[int] | None = None) -> list[MeasureStudy]:
    """Each measure that all runs of a study have, at each k that all of them have.

    pass_at: the k to show, all by default.

    Raises:
        InvalidArgument: a run, such as a row of a file, has no pass@k for a k of ``pass_at``.
    """
    rows = [row for method in study.methods for row in method.rows]
    for k in pass_at or ():
        for row in rows:
            _require_stored(row, k)
    from_start = study.baseline == BEFORE and BEFORE not in {row.label for row in rows}
    studies = []
    for measure in MEASURES:
        stored = [(row.at_k or {}).get(measure.name, {}) for row in rows]
        if from_start:
            stored += [(row.at_k_before or {}).get(measure.name, {}) for row in rows]
        ks = sorted(int(k) for k in stored[0] if all(k in rates for rates in stored))
        if ks := [k for k in ks if pass_at is None or k in pass_at]:
            studies.append(_measured(study, measure, ks))
    return studies


def _measured(study: Study, measure: Measure, ks: Sequence[int]) -> MeasureStudy:
    methods = {k: _at(study, measure, k).methods for k in ks}
    p_values = [method.p for of_k in methods.values() for method in of_k if method.p is not None]
    corrected = iter(holm(p_values))
    return MeasureStudy(
        measure,
        {
            k: tuple(method if method.p is None else replace(method, p_holm=next(corrected)) for method in of_k)
            for k, of_k in methods.items()
        },
        study.baseline,
    )


def _at(study: Study, measure: Measure, k: int) -> Study:
    """The study with a measure at k in place of the success rates."""

    def measured(row: RunRow) -> RunRow:
        after = (row.at_k or {}).get(measure.name, {}).get(str(k))
        before = (row.at_k_before or {}).get(measure.name, {}).get(str(k))
        return row.model_copy(update={"after": after, "before": before})

    return Study.of([measured(row) for method in study.methods for row in method.rows], study.baseline)


def _require_stored(row: RunRow, k: int) -> None:
    stored = (row.at_k or {}).get(PASS.name, {})
    if str(k) not in stored:
        available = ", ".join(stored) or "none"
        raise InvalidArgument(
            f"--pass-at {k}: {row.label}, seed {row.seed}, has no pass@{k} (stored k: {available})",
            key="--pass-at",
            advice="give its run folder, evaluated with enough episodes per task",
        )
