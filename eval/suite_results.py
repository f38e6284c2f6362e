"""Results of suites: a file that names a result for each task set, the mean over task sets, and comparisons."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import Field

from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import WIDTH, Table, facts
from gagpo.eval.compare import ComparedDifference, compare_results, difference_table
from gagpo.eval.measures import SUCCESS
from gagpo.eval.results import EvalResult
from gagpo.eval.statistics import Interval, detectable_rise, holm, random_sign_flips, sign_flips_over
from gagpo.eval.units import PERCENT, plain
from gagpo.runs.reading import BadResult, Document, parse, read_text, validated

FORMAT = "gagpo suite 1"
MEAN = "mean"
RECORDED = ("value", "low", "high", "level", "gained", "lost", "p_holm")
"""The numbers of a difference that a record has."""


class ResultFile(Document):
    """A result of a suite: its file, next to the suite's, and the SHA-256 of its content."""

    file: str = Field(pattern=r"^[^/\\\x00]{1,255}$")  # never a path that leads elsewhere
    sha256: str


class SuiteFile(Document):
    """The file of a suite's results."""

    format: str
    suite: str
    results: dict[str, ResultFile] = Field(min_length=1)


@dataclass(frozen=True)
class SuiteResult:
    """A model's results in the task sets of a suite, by their names.

    suite: name or file of the suite.
    """

    suite: str
    results: Mapping[str, EvalResult]

    @property
    def model(self) -> str:
        """The model that was evaluated."""
        return next(iter(self.results.values())).model

    @property
    def mean(self) -> Interval:
        """The mean of the success rates; every task set counts equally, whatever its size."""
        return mean_of([result.success for result in self.results.values()])

    def table(self, tokens: Mapping[str, int] | None = None, dollars: Mapping[str, float] | None = None) -> Table:
        """Success with intervals, mean reward and turns of every task set, and the mean success.

        tokens: response tokens by task set; the last row has their sum. None or all 0 for an agent without tokens.
        dollars: what a server charged by task set; None for a model here.
        """
        rows = [
            [
                name,
                str(result.task_set.tasks),
                PERCENT.interval(result.success),
                plain(result.mean_reward.value, 3),
                plain(result.mean_turns),
            ]
            for name, result in self.results.items()
        ]
        tasks = str(sum(result.task_set.tasks for result in self.results.values()))
        rows.append([MEAN, tasks, PERCENT.interval(self.mean), "", ""])
        header = ["task set", "tasks", "success %", "reward", "turns"]
        if tokens and any(tokens.values()):
            header.append("tokens")
            _add_column(rows, [f"{tokens[name]:,}" for name in self.results], f"{sum(tokens.values()):,}")
        if dollars:
            header.append("cost")
            _add_column(rows, [f"${dollars[name]:.2f}" for name in self.results], f"${math.fsum(dollars.values()):.2f}")
        return Table(header, rows)

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        return {"suite": self.suite, "model": self.model, "mean": self.mean.record()}

    def save(self, path: Path, files: Mapping[str, Path]) -> None:
        """Write the suite's file. files: those of the results, which are next to it."""
        results = {name: {"file": file.name, "sha256": digest_of(file)} for name, file in files.items()}
        record = {"format": FORMAT, "suite": self.suite, "results": results}
        durable.write_text(path, json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> SuiteResult:
        """Read a suite's file and the results that it names.

        Raises: BadResult if a file is wrong, or is not the one that was evaluated.
        """
        document = validated(SuiteFile, parse(read_text(path), str(path)), str(path))
        if document.format != FORMAT:
            raise BadResult(f"format must be {FORMAT!r} (got {document.format!r:.80})", key="format", where=path)
        results = {}
        for name, entry in document.results.items():
            file = path.with_name(entry.file)
            results[name] = EvalResult.load(file)
            if digest_of(file) != entry.sha256:
                raise BadResult(
                    f"is not the result that {path} names: its SHA-256 differs", where=file, advice="evaluate again"
                )
        return cls(document.suite, results)


def _add_column(rows: Sequence[list[str]], cells: Sequence[str], total: str) -> None:
    """Append a cell to each row; the last one is that of all."""
    for row, cell in zip(rows, [*cells, total], strict=True):
        row.append(cell)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_suite(path: Path) -> bool:
    """Whether a file has results of a suite."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return FORMAT.encode() in file.read(80)


def mean_of(intervals: Sequence[Interval]) -> Interval:
    """The mean of independent estimates, with the distances of their bounds combined by "square and add".

    Zou & Donner (2008): exact intervals of the parts, which need not be symmetric, give that of a sum.
    """
    count = len(intervals)
    value = math.fsum(interval.value for interval in intervals) / count
    low = value - math.hypot(*(interval.value - interval.low for interval in intervals)) / count
    high = value + math.hypot(*(interval.high - interval.value for interval in intervals)) / count
    return Interval(value, low, high, intervals[0].level)


@dataclass(frozen=True)
class SuiteComparison:
    """Suite results by label, the first as the baseline.

    differences: of each of the others by its label: in each task set, and in the mean.
    """

    suites: dict[str, SuiteResult]
    differences: dict[str, list[ComparedDifference]]

    def results_table(self) -> Table:
        """Success of all, with one column each."""
        suites = self.suites.values()
        names = next(iter(suites)).results
        rows = [[name, *(PERCENT.interval(suite.results[name].success) for suite in suites)] for name in names]
        return Table(["success %", *self.suites], [*rows, [MEAN, *(PERCENT.interval(suite.mean) for suite in suites)]])

    def difference_tables(self) -> dict[str, Table]:
        """The differences of each result that is compared with the first, by what is subtracted from what."""
        baseline = next(iter(self.suites))
        return {
            f"{label} minus {baseline}": difference_table(["difference"], differences)
            for label, differences in self.differences.items()
        }

    def lines(self, width: int = WIDTH) -> list[str]:
        """The tables as ASCII lines of at most ``width`` columns."""
        lines = [*(line for part in self.results_table().split(width) for line in (*part.lines(width), ""))]
        for title, table in self.difference_tables().items():
            lines += [*facts([("difference", title)], width), *table.lines(width), ""]
        note = "95 % intervals, paired by task; every task set counts equally in the mean; p of the mean: sign flips"
        detectable = max(rows[-1].detectable for rows in self.differences.values())
        if detectable and math.isfinite(detectable):
            note += f"; the mean shows a difference of {PERCENT.amount(detectable)} or more (80 % power)"
        return [*lines, *facts([("note", note)], width)]

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "suites": {label: suite.record() for label, suite in self.suites.items()},
            "differences": {
                label: {row.label: {name: row.record()[name] for name in RECORDED} for row in differences}
                for label, differences in self.differences.items()
            },
        }


def compare_suites(paths: Sequence[Path]) -> SuiteComparison:
    """Compare the results of suites with the first, task by task; each is named by its file without ``.json``.

    Raises:
        InvalidArgument: a path is no file of a suite, or the suites have different task sets.
    """
    for path in paths:
        if not is_suite(path):
            raise InvalidArgument(
                "has no results of a suite", where=path, advice="compare suites with suites, or single results"
            )
    stems = {path.stem for path in paths}
    labels = [path.stem if len(stems) == len(paths) else str(path).removesuffix(".json") for path in paths]
    suites = {label: SuiteResult.load(path) for label, path in zip(labels, paths, strict=True)}
    if len(suites) != len(paths):
        raise InvalidArgument("the same result file is named twice")
    (first_label, first), *compared = suites.items()
    for label, suite in compared:
        if suite.results.keys() != first.results.keys():
            names = [", ".join(each.results) for each in (first, suite)]
            raise InvalidArgument(
                f"{first_label} and {label} have different task sets: {names[0]}", advice=f"{names[1]}"
            )
    return SuiteComparison(suites, {label: _differences(first, suite, label) for label, suite in compared})


def _differences(first: SuiteResult, other: SuiteResult, label: str) -> list[ComparedDifference]:
    """The differences in every task set, and that of the means."""
    rows = []
    weighted = []
    for name, result in first.results.items():
        comparison = compare_results({f"{name} (baseline)": result, f"{name} ({label})": other.results[name]})
        rows += comparison.of(SUCCESS)
        weighted.append([SUCCESS.values(each.tasks) / len(each.tasks) for each in (result, other.results[name])])
    before, after = (np.concatenate(side) for side in zip(*weighted, strict=True))
    corrected = holm([row.p for row in rows])
    differences = [
        replace(row, label=name, p_holm=p_holm)
        for name, row, p_holm in zip(first.results, rows, corrected, strict=True)
    ]
    p_mean = random_sign_flips(before, after)
    gained, lost = sum(row.gained for row in rows), sum(row.lost for row in rows)
    mean = mean_of([row.rise for row in rows])
    detectable = detectable_rise(before, after) * len(before) / len(rows)  # of the sum over tasks, which are weighted
    return [
        *differences,
        ComparedDifference(mean, p_mean, sign_flips_over(None), gained, lost, detectable, SUCCESS, MEAN, p_mean),
    ]
