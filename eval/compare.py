"""Compare evaluations of the same task set: differences, paired intervals, corrected p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.tables import WIDTH, Table, facts
from gagpo.eval.measures import FIRST, REWARD, SUCCESS, Difference, Measure
from gagpo.eval.results import EvalResult, at_k_record, measures_of_k, shown_measures
from gagpo.eval.runs import load_run
from gagpo.eval.statistics import holm
from gagpo.eval.summary import at_k_table, results_table, task_set_facts
from gagpo.eval.units import p_value


class DifferentTaskSets(GagpoError, ValueError):
    """Results of different task sets, which cannot be compared."""


@dataclass(frozen=True)
class ComparedDifference(Difference):
    """One result compared with the baseline in one measure.

    p_holm: ``p`` corrected for all comparisons of the measure, in pass@k and the like for all k too.
    """

    measure: Measure
    label: str
    p_holm: float

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        values = {**self.rise.record(), "p": self.p, "p_holm": self.p_holm, "test": self.test}
        if math.isfinite(self.detectable):
            values["detectable"] = self.detectable
        if self.measure in FIRST:
            return {**values, "gained": self.gained, "lost": self.lost}
        return {"measure": self.measure.name, "label": self.label, "k": self.measure.k, **values}


@dataclass(frozen=True)
class Comparison:
    """Results by label, the baseline first, and what the others differ from it in.

    differences: in success; in mean reward, unless it says no more than success does; in the measures of k episodes.
    at_k: the measures of k episodes; empty if they are not compared.
    """

    results: dict[str, EvalResult]
    differences: tuple[ComparedDifference, ...]
    at_k: tuple[Measure, ...] = ()

    @property
    def baseline(self) -> str:
        return next(iter(self.results))

    @property
    def first(self) -> list[Measure]:
        """The measures that come first: mean reward, success, or both."""
        return shown_measures(self.results.values())

    def of(self, *measures: Measure) -> list[ComparedDifference]:
        """The differences in some measures."""
        return [row for row in self.differences if row.measure in measures]

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        rewards = {row.label: row.record() for row in self.of(REWARD)}
        at_k: dict[str, object] = {}
        if self.at_k:
            ks = sorted({measure.k for measure in self.at_k})
            at_k["at_k"] = {label: at_k_record(result, ks) for label, result in self.results.items()}
            at_k["at_k_differences"] = [row.record() for row in self.of(*self.at_k)]
        return {
            "baseline": self.baseline,
            "results": {label: result.summary() for label, result in self.results.items()},
            "differences": {row.label: row.record() for row in self.of(SUCCESS)},
            **({"reward_differences": rewards} if rewards else {}),
            **at_k,
        }

    @property
    def note(self) -> str:
        """What the differences are, and the tests behind their p-values."""
        names = {row.test for row in self.of(*self.first, *self.at_k)}
        tested = f"against {self.baseline}; 95 % intervals, paired by task; p: {', '.join(sorted(names))}"
        return "; ".join([tested, *self._detectable()])

    def _detectable(self) -> list[str]:
        """What these tasks would show of the first measure, by the spread of the least certain difference."""
        measure = self.first[0]
        largest = max(row.detectable for row in self.of(measure))
        if not math.isfinite(largest) or not largest:
            return []
        return [f"these tasks show a difference of {measure.unit.amount(largest)} or more (80 % power)"]

    def difference_tables(self) -> list[Table]:
        """Differences in mean reward, in success, or both: one row per result that is compared with the baseline."""
        names = ["difference", "difference, success"]  # the rewards' table names its measure in the next column
        return [difference_table([name], self.of(measure)) for name, measure in zip(names, self.first, strict=False)]

    def at_k_difference_tables(self) -> list[Table]:
        """One table per measure of k episodes, one row per result and k."""
        names = dict.fromkeys(measure.name for measure in self.at_k)
        return [
            difference_table(
                [f"difference, {name}", "k"], [row for row in self.differences if row.measure.name == name]
            )
            for name in names
        ]

    def lines(self, width: int = WIDTH) -> list[str]:
        """The tables as ASCII lines of at most ``width`` columns."""
        tables = [*_fitting(results_table(self.results), width), *self.difference_tables(), *self._at_k_tables(width)]
        return [
            *facts(task_set_facts(self.results[self.baseline], self._different_tries())[:2], width),
            "",
            *(line for table in tables for line in (*table.lines(width), "")),
            *facts([("note", self.note)], width),
        ]

    def _different_tries(self) -> str:
        """The episodes per task of each result; empty if all have equally many."""
        tries = {label: result.task_set.tries for label, result in self.results.items()}
        if len(set(tries.values())) == 1:
            return ""
        return "run " + ", ".join(f"{number} x ({label})" for label, number in tries.items())

    def _at_k_tables(self, width: int) -> list[Table]:
        rates = at_k_table(self.results, self.at_k)
        return [*(rates.split(width, keys=2) if rates else []), *self.at_k_difference_tables()]


def _fitting(table: Table, width: int) -> list[Table]:
    """The table, in parts if it has both mean rewards and success rates and does not fit."""
    return [table] if table.fits(width) or "mean reward" not in table.header else table.split(width)


def difference_table(keys: Sequence[str], differences: Sequence[ComparedDifference]) -> Table:
    """Differences in one measure.

    keys: the header of the columns with a result's label and, of measures of k episodes, with k.
    """
    measure = differences[0].measure
    # The numbers of tasks with a higher and a lower reward share a column, because rewards take more letters.
    counts = {SUCCESS: ["better", "worse"], REWARD: ["up/down"]}.get(measure, [])
    rows = []
    for row in differences:
        numbers = [str(row.gained), str(row.lost)]
        numbers = ["/".join(numbers)] if measure == REWARD else numbers[: len(counts)]
        label = [row.label, str(row.measure.k)][: len(keys)]
        rows.append([*label, measure.unit.interval(row.rise, signed=True), *numbers, p_value(row.p_holm)])
    rise = measure.name if measure == REWARD else measure.unit.difference
    return Table([*keys, rise, *counts, "p (Holm)" if len(rows) > 1 else "p"], rows)


def compare_results(results: Mapping[str, EvalResult], pass_at: Sequence[int] | None = None) -> Comparison:
    """Compare every result with the first.

    pass_at: the k of pass@k; by default those of :func:`gagpo.eval.results.measures_of_k`.

    Raises:
        DifferentTaskSets: the results have different tasks or conditions.
        InvalidArgument: there are fewer than two results, or fewer episodes per task than a k.
    """
    if len(results) < 2:
        raise InvalidArgument(f"a comparison needs at least two results, got {len(results)}", key="results")
    (baseline, first), *remaining = results.items()
    for label, other in remaining:
        require_same_task_set(baseline, first, label, other)
    at_k = measures_of_k(results, pass_at)
    rewards = [REWARD] if REWARD in shown_measures(results.values()) else []
    differences: list[ComparedDifference] = []
    for _, of_name in groupby([SUCCESS, *rewards, *at_k], key=lambda measure: measure.name):
        pairs = [(label, measure) for (label, _), measure in product(remaining, of_name)]
        rises = [first.difference(results[label], measure) for label, measure in pairs]
        differences += [
            ComparedDifference(**vars(rise), measure=measure, label=label, p_holm=p_holm)
            for (label, measure), rise, p_holm in zip(pairs, rises, holm([rise.p for rise in rises]), strict=True)
        ]
    return Comparison(dict(results), tuple(differences), tuple(at_k))


def require_same_task_set(label: str, first: EvalResult, other_label: str, other: EvalResult) -> None:
    """Raise :class:`DifferentTaskSets` unless both results have the same tasks and conditions."""
    difference = first.task_set.difference(other.task_set)
    if difference is None and [task.task for task in first.tasks] != [task.task for task in other.tasks]:
        difference = "their task ids differ although the hashes agree; one file has been edited"
    if difference:
        raise DifferentTaskSets(f"{label} and {other_label} are not of the same task set: {difference}")


def compare_files(paths: Sequence[Path], split: str | None = None, pass_at: Sequence[int] | None = None) -> Comparison:
    """Load results and compare them with the first; each is named by its path without ``.json``.

    paths: result files, or run folders, which stand for :meth:`gagpo.eval.runs.Run.last`.
    split: of run folders.
    pass_at: as in :func:`compare_results`.
    """
    if len(set(paths)) != len(paths):
        raise InvalidArgument("the same result file is named twice")
    return compare_results({str(path).removesuffix(".json"): _load(path, split) for path in paths}, pass_at)


def _load(path: Path, split: str | None) -> EvalResult:
    if not path.is_dir():
        return EvalResult.load(path)
    run = load_run(path)
    evaluation = run.last(split)
    if evaluation is None:
        splits = ", ".join(run.splits()) or "none"
        raise InvalidArgument(
            f"run {path} holds no evaluation of split {split!r}", advice=f"it was evaluated on: {splits}"
        )
    return evaluation.result
