"""Compare evaluations of the same task set: differences, paired intervals, corrected p-values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.tables import WIDTH, Table, facts
from gagpo.eval.at_k import KDifference, Measure, at_k_record, measures_of, shown_ks
from gagpo.eval.results import EvalResult, joint_headline
from gagpo.eval.runs import load_run
from gagpo.eval.statistics import (
    Interval,
    holm,
    paired_difference,
    paired_mean_difference,
    paired_mean_test,
    paired_test,
)
from gagpo.eval.summary import (
    at_k_table,
    measured,
    p_value,
    results_table,
    reward_with_interval,
    task_set_facts,
    with_interval,
)
from gagpo.runs.headline import Headline


class DifferentTaskSets(GagpoError, ValueError):
    """Results of different task sets, which cannot be compared."""


@dataclass(frozen=True)
class Difference:
    """One result compared with the baseline, in success or in mean reward.

    rise: its success rate, or mean reward, minus the baseline's.
    p: of the paired test named ``test``.
    p_holm: ``p`` corrected for all comparisons of the table.
    gained, lost: number of tasks solved more or less often than by the baseline, or with a higher or lower reward.
    """

    label: str
    rise: Interval
    p: float
    p_holm: float
    test: str
    gained: int
    lost: int

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        facts = {name: value for name, value in vars(self).items() if name not in ("label", "rise")}
        return {**self.rise.record(), **facts}


@dataclass(frozen=True)
class AtKDifference:
    """One result compared with the baseline in a measure of k episodes, such as pass@8.

    p_holm: its p-value corrected for all results and all k of the measure.
    """

    measure: Measure
    label: str
    k: int
    difference: KDifference
    p_holm: float

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "measure": self.measure.name,
            "label": self.label,
            "k": self.k,
            **self.difference.rise.record(),
            "p": self.difference.p,
            "p_holm": self.p_holm,
            "test": self.difference.test,
        }


@dataclass(frozen=True)
class Comparison:
    """Results by label, the baseline first, and a difference for each of the others.

    ks: the k of pass@k and the like; empty if they are not compared.
    at_k: the differences in these measures, by measure, result and k.
    rewards: the differences in mean reward; empty where it says no more than success does.
    """

    results: dict[str, EvalResult]
    differences: tuple[Difference, ...]
    ks: tuple[int, ...] = ()
    at_k: tuple[AtKDifference, ...] = ()
    rewards: tuple[Difference, ...] = ()

    @property
    def baseline(self) -> str:
        return next(iter(self.results))

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "baseline": self.baseline,
            "results": {label: result.summary() for label, result in self.results.items()},
            "differences": {difference.label: difference.record() for difference in self.differences},
            **self._reward_record(),
            **self._at_k_record(),
        }

    def _reward_record(self) -> dict[str, object]:
        """The differences in mean reward; nothing if they are not compared."""
        if not self.rewards:
            return {}
        return {"reward_differences": {difference.label: difference.record() for difference in self.rewards}}

    def _at_k_record(self) -> dict[str, object]:
        """The measures of k episodes; nothing if they are not compared."""
        if not self.ks:
            return {}
        differences = [difference.record() for difference in self.at_k]
        values = {label: at_k_record(result, self.ks) for label, result in self.results.items()}
        return {"at_k": values, "at_k_differences": differences}

    @property
    def note(self) -> str:
        """What the differences are, and the tests behind their p-values."""
        differences = [*self.rewards, *(self.differences if self.headline.success else ())]
        names = {difference.test for difference in differences} | {row.difference.test for row in self.at_k}
        tests = ", ".join(sorted(names))
        return f"against {self.baseline}; 95 % intervals, paired by task; p: {tests}"

    @property
    def headline(self) -> Headline:
        """Which numbers are shown first."""
        return joint_headline(self.results.values())

    def difference_tables(self) -> list[Table]:
        """Differences in mean reward, in success, or both: one row per result that is compared with the baseline."""
        tables = []
        if self.rewards:
            tables.append(_reward_difference_table(self.rewards))
        if self.headline.success:
            tables.append(_difference_table("difference, success" if self.rewards else "difference", self.differences))
        return tables

    def at_k_difference_tables(self) -> list[Table]:
        """One table per measure of k episodes, one row per result and k."""
        tables = []
        for measure, differences in groupby(self.at_k, key=lambda row: row.measure):
            rows = [
                [
                    row.label,
                    str(row.k),
                    measured(row.difference.rise, measure, signed=True),
                    p_value(row.p_holm),
                ]
                for row in differences
            ]
            p_name = "p (Holm)" if len(rows) > 1 else "p"
            header = [f"difference, {measure.name}", "k", "points" if measure.share else "rise", p_name]
            tables.append(Table(header, rows))
        return tables

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
        rates = at_k_table(self.results, self.ks)
        return [*(rates.split(width, keys=2) if rates else []), *self.at_k_difference_tables()]


def _fitting(table: Table, width: int) -> list[Table]:
    """The table, in parts if it has both mean rewards and success rates and does not fit."""
    return [table] if table.fits(width) or "mean reward" not in table.header else table.split(width)


def _difference_table(name: str, differences: Sequence[Difference]) -> Table:
    rows = [
        [
            difference.label,
            with_interval(difference.rise, signed=True),
            str(difference.gained),
            str(difference.lost),
            p_value(difference.p_holm),
        ]
        for difference in differences
    ]
    return Table([name, "points", "better", "worse", _p_name(differences)], rows)


def _reward_difference_table(differences: Sequence[Difference]) -> Table:
    """The number of tasks with a higher and a lower reward share a column, because rewards take more letters."""
    rows = [
        [
            difference.label,
            reward_with_interval(difference.rise, signed=True),
            f"{difference.gained}/{difference.lost}",
            p_value(difference.p_holm),
        ]
        for difference in differences
    ]
    return Table(["difference", "mean reward", "up/down", _p_name(differences)], rows)


def _p_name(differences: Sequence[Difference]) -> str:
    return "p (Holm)" if len(differences) > 1 else "p"


def compare_results(results: Mapping[str, EvalResult], pass_at: Sequence[int] | None = None) -> Comparison:
    """Compare every result with the first.

    pass_at: the k of pass@k; by default those of :func:`gagpo.eval.at_k.shown_ks`.

    Raises:
        DifferentTaskSets: the results have different tasks or conditions.
        InvalidArgument: there are fewer than two results, or fewer episodes per task than a k.
    """
    if len(results) < 2:
        raise InvalidArgument(f"a comparison needs at least two results, got {len(results)}", key="results")
    (baseline, first), *remaining = results.items()
    for label, other in remaining:
        require_same_task_set(baseline, first, label, other)
    tests = [paired_test(first.counts, other.counts, first.units) for _, other in remaining]
    corrected = holm([p for p, _ in tests])
    ks = shown_ks(results, pass_at)
    return Comparison(
        dict(results),
        tuple(
            _difference(label, first, other, p, p_holm, test)
            for (label, other), (p, test), p_holm in zip(remaining, tests, corrected, strict=True)
        ),
        tuple(ks),
        tuple(_at_k_differences(results, ks)) if ks else (),
        _reward_differences(results) if joint_headline(results.values()).reward else (),
    )


def _reward_differences(results: Mapping[str, EvalResult]) -> tuple[Difference, ...]:
    """The differences in mean reward, paired by task."""
    (_, first), *remaining = results.items()
    before = first.task_rewards
    tests = [paired_mean_test(before, other.task_rewards, first.units) for _, other in remaining]
    corrected = holm([p for p, _ in tests])
    differences = []
    for (label, other), (p, test), p_holm in zip(remaining, tests, corrected, strict=True):
        after = other.task_rewards
        gained = sum(b > a for a, b in zip(before, after, strict=True))
        lost = sum(b < a for a, b in zip(before, after, strict=True))
        rise = paired_mean_difference(before, after, clusters=first.units)
        differences.append(Difference(label, rise, p, p_holm, test, gained, lost))
    return tuple(differences)


def _at_k_differences(results: Mapping[str, EvalResult], ks: Sequence[int]) -> Iterator[AtKDifference]:
    first, *remaining = results.items()
    for measure in measures_of(results.values()):
        rows = [
            (label, k, difference)
            for label, other in remaining
            for k, difference in measure.differences(first[1], other, ks).items()
        ]
        corrected = holm([difference.p for _, _, difference in rows])
        for (label, k, difference), p_holm in zip(rows, corrected, strict=True):
            yield AtKDifference(measure, label, k, difference, p_holm)


def _difference(label: str, first: EvalResult, other: EvalResult, p: float, p_holm: float, test: str) -> Difference:
    pairs = list(zip(zip(*first.counts, strict=True), zip(*other.counts, strict=True), strict=True))
    gained = sum(after * tries > before * again for (before, tries), (after, again) in pairs)
    lost = sum(after * tries < before * again for (before, tries), (after, again) in pairs)
    rise = paired_difference(first.counts, other.counts, clusters=first.units)
    return Difference(label, rise, p, p_holm, test, gained, lost)


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
