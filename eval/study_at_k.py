"""pass@k and the other measures of k episodes in a study: means over seeds, intervals and paired t tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import WIDTH, Table
from gagpo.eval.measures import OF_K, PASS, Measure
from gagpo.eval.study import BEFORE, Method, RunRow, Study, gap_and_p, narrow_table


@dataclass(frozen=True)
class MeasureStudy:
    """One measure of k episodes for all methods of a study.

    measures: the measure at each k. Their p-values are corrected for all methods and all k.
    """

    study: Study
    measures: tuple[Measure, ...]

    @property
    def name(self) -> str:
        """The name of the measure."""
        return self.measures[0].name

    @property
    def methods(self) -> dict[int, tuple[Method, ...]]:
        """The methods by k."""
        methods = self.study.compared(*self.measures)
        return {measure.k: tuple(each for each in methods if each.measure == measure) for measure in self.measures}

    def table(self) -> Table:
        """One row per method and k."""
        header = ["", "k", self.measures[0].title, f"minus {self.study.baseline}", "p (Holm)"]
        rows = []
        for methods_of_label in zip(*self.methods.values(), strict=True):
            for method in methods_of_label:
                after = method.measure.unit.spread(method.mean("after"))
                rows.append([method.label, str(method.measure.k), after, *gap_and_p(method)])
        return Table(header, rows)

    def lines(self, width: int = WIDTH) -> list[str]:
        """The table in ASCII, at most ``width`` columns wide."""
        tables = narrow_table(self.table()).split(width, keys=2)
        return [line for narrow in tables for line in ("", *narrow.lines(width))][1:]

    def caption(self) -> str:
        """The caption of :meth:`table` in a paper."""
        return self.study.caption(self.measures[0])

    def record(self) -> dict[str, dict[str, object]]:
        """JSON-ready values by k and method."""
        return {
            str(k): {method.label: method.record("mean") for method in methods} for k, methods in self.methods.items()
        }


def measure_studies(study: Study, pass_at: Sequence[int] | None = None) -> list[MeasureStudy]:
    """Each measure that all runs of a study have, at each k that all of them have.

    pass_at: the k to show, all by default.

    Raises:
        InvalidArgument: a run, such as a row of a file, has no pass@k for a k of ``pass_at``.
    """
    for k in pass_at or ():
        for row in study.rows:
            _require_stored(row, k)
    stages = ["after", *(["before"] if study.baseline == BEFORE and BEFORE not in study.labels else [])]
    studies = []
    for measure in OF_K:
        stored = sorted(map(int, (study.rows[0].at_k or {}).get(measure.name, {})))
        measures = [measure.at(k) for k in stored if pass_at is None or k in pass_at]
        numbers = {at_k: [row.number(stage, at_k) for row in study.rows for stage in stages] for at_k in measures}
        if shared := tuple(at_k for at_k in measures if not any(map(math.isnan, numbers[at_k]))):
            studies.append(MeasureStudy(study, shared))
    return studies


def _require_stored(row: RunRow, k: int) -> None:
    stored = (row.at_k or {}).get(PASS.name, {})
    if str(k) not in stored:
        available = ", ".join(stored) or "none"
        raise InvalidArgument(
            f"--pass-at {k}: {row.label}, seed {row.seed}, has no pass@{k} (stored k: {available})",
            key="--pass-at",
            advice="give its run folder, evaluated with enough episodes per task",
        )
