"""Many runs in one table: means over seeds with intervals, paired tests against a baseline, and cost.

Each run is a row of numbers (:class:`RunRow`), from its folder or from a file of rows such as ``lab/results/*.jsonl``.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from gagpo.base.errors import InvalidArgument
from gagpo.base.renamed import PRESETS
from gagpo.base.tables import WIDTH, Table, ascii_only
from gagpo.eval.compare import require_same_task_set
from gagpo.eval.measures import FIRST, REWARD, SUCCESS, Measure
from gagpo.eval.results import EvalResult, by_name_and_k, measures_of_k
from gagpo.eval.runs import Run
from gagpo.eval.statistics import (
    Interval,
    area_under_curve,
    detectable_difference,
    holm,
    mean_over_seeds,
    paired_t,
)
from gagpo.eval.units import PERCENT, p_value, percent, reward_number
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE
from gagpo.runs.reading import BadResult, Document, read_as, read_text

STAGES = ("before", "after", "area")
K = Annotated[str, StringConstraints(pattern="^[1-9][0-9]{0,5}$")]
Rates = dict[str, dict[K, float]]
"""Means over tasks by measure (``pass@k``) and k."""


class RunRow(Document):
    """One run in numbers.

    tries: episodes of each task.
    before, after: success rate before and after training, from 0 to 1.
    reward_after, reward_before: mean reward of an episode after and before training.
    area, reward_area: mean success rate and mean reward in training, over environment turns.
    graded: whether mean rewards come first (:data:`gagpo.runs.headline.Headline`).
    reports_success: whether success is shown.
    tokens_total: response tokens sampled.
    seconds: time of the iterations, without evaluations.
    turns: environment turns after each iteration.
    success: success rate of each iteration.
    task_successes: won episodes of each task after training, in the order of the task ids; of rows since 2026-11-29.
    at_k, at_k_before: pass@k and the other measures of k episodes after and before training; None with one try.
    """

    label: str
    seed: int
    split: str
    split_hash: str
    tasks: int = Field(ge=1)
    tries: int = Field(ge=1)
    before: float | None = None
    after: float
    reward_after: float
    reward_before: float | None = None
    area: float
    reward_area: float | None = None
    graded: bool = False
    reports_success: bool = True
    tokens_total: float
    seconds: float | None = None
    turns: list[float] = Field(default_factory=list)
    success: list[float] = Field(default_factory=list)
    task_successes: list[int] = Field(default_factory=list)
    at_k: Rates | None = None
    at_k_before: Rates | None = None

    def number(self, name: str, measure: Measure) -> float:
        """A field of the row; for ``before``, ``after`` and ``area`` that of a measure. NaN if it is not stored."""
        if measure in FIRST:
            value = getattr(self, f"reward_{name}" if measure == REWARD and name in STAGES else name)
        else:
            rates = self.at_k if name == "after" else self.at_k_before
            value = (rates or {}).get(measure.name, {}).get(str(measure.k))
        return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Method:
    """The runs of one label in one measure.

    rows: one per seed.
    gap: the measure after training minus the baseline's, paired by seed; None if no seed is shared.
    p: of the paired t test over the shared seeds; None if there are fewer than two.
    p_holm: ``p`` corrected for all methods of the table.
    """

    label: str
    rows: tuple[RunRow, ...]
    measure: Measure = SUCCESS
    gap: Interval | None = None
    p: float | None = None
    p_holm: float | None = None

    def numbers(self, name: str) -> dict[int, float]:
        """:meth:`RunRow.number` by seed."""
        return {row.seed: row.number(name, self.measure) for row in self.rows}

    def mean(self, name: str) -> Interval:
        """Mean of a number over the seeds; NaN if a seed lacks it."""
        values = list(self.numbers(name).values())
        return Interval(*3 * [math.nan]) if any(map(math.isnan, values)) else mean_over_seeds(values)

    def compared_with(self, baseline: Method | None) -> Method:
        """With the difference to a baseline; to its own runs before training if that is None."""
        references = self.numbers("before") if baseline is None else baseline.numbers("after")
        gap = _rises(references, self.numbers("after"))
        p = paired_t(gap) if len(gap) > 1 else math.nan
        return replace(self, gap=mean_over_seeds(gap) if gap else None, p=None if math.isnan(p) else p)

    def record(self, name: str = "after") -> dict[str, object]:
        """JSON-ready values. name: of the mean."""
        gap = self.gap.record() if self.gap else None
        return {name: self.mean("after").record(), "gap": gap, "p": self.p, "p_holm": self.p_holm}


BEFORE = "before"
"""Baseline: each run's own model before training."""

MOVABLE = ("minutes", "1,000 tokens", "reward after", "area %", "area", "seeds")
"""Columns that move to a second table on a narrow terminal, in this order."""


@dataclass(frozen=True)
class Study:
    """Methods to compare, in success and, where these come first, in mean rewards.

    labels: of the methods, the baseline first if it is one of them.
    baseline: its label, or ``before``.
    """

    rows: tuple[RunRow, ...]
    labels: tuple[str, ...]
    baseline: str

    @classmethod
    def of(cls, rows: Sequence[RunRow], baseline: str | None = None) -> Study:
        """Group rows by label. By default the first label is the baseline; a single one is compared with its start.

        Raises:
            InvalidArgument: there are no rows, or they cannot be compared.
        """
        labels = _labels(rows, baseline)
        seeds = Counter((row.label, row.seed) for row in rows)
        for label in labels:
            if any(count > 1 for (name, _), count in seeds.items() if name == label):
                raise InvalidArgument(
                    "two runs have the same seed", where=label, advice="name methods as LABEL=FOLDER to tell them apart"
                )
        alone = len(labels) == 1 and all(row.before is not None for row in rows)
        by_label = sorted(rows, key=lambda row: labels.index(row.label))
        return cls(tuple(by_label), tuple(labels), baseline or (BEFORE if alone else labels[0]))

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods in success, the baseline first."""
        return self.compared(SUCCESS)

    def compared(self, *measures: Measure) -> tuple[Method, ...]:
        """The methods in some measures. Their ``p_holm`` is corrected for all methods in all of these measures."""
        methods = []
        for measure in measures:
            of = {
                label: Method(label, tuple(row for row in self.rows if row.label == label), measure)
                for label in self.labels
            }
            baseline = of.get(self.baseline)
            methods += [method if method is baseline else method.compared_with(baseline) for method in of.values()]
        corrected = iter(holm([method.p for method in methods if method.p is not None]))
        return tuple(method if method.p is None else replace(method, p_holm=next(corrected)) for method in methods)

    @property
    def measures(self) -> list[Measure]:
        """Mean reward if it comes first, and success unless no run reports it."""
        if not any(row.graded for row in self.rows) or any(row.reward_area is None for row in self.rows):
            return [SUCCESS]
        return [REWARD, SUCCESS] if any(row.reports_success for row in self.rows) else [REWARD]

    def tables(self) -> list[Table]:
        """One for each of :attr:`measures`."""
        return [self.table(measure) for measure in self.measures]

    def table(self, measure: Measure = SUCCESS) -> Table:
        """One row per method, the best mean first."""
        has_rewards = self.measures == [SUCCESS] and any(abs(row.reward_after - row.after) > 0.005 for row in self.rows)
        has_times = all(row.seconds is not None for row in self.rows)
        numbers = ["area %", "after %"] if measure == SUCCESS else ["area", "reward after"]
        header = ["", "seeds", *numbers, f"minus {self.baseline}", "p (Holm)"]
        header += [*(["reward after"] if has_rewards else []), "1,000 tokens", *(["minutes"] if has_times else [])]
        rows = []
        for method in sorted(self.compared(measure), key=lambda method: -method.mean("after").value):
            means = [measure.unit.spread(method.mean(name)) for name in ("area", "after")]
            cells = [method.label, str(len(method.rows)), *means, *gap_and_p(method)]
            cells += [f"{method.mean('reward_after').value:.2f}"] if has_rewards else []
            cells.append(f"{method.mean('tokens_total').value / 1000:,.0f}")
            cells += [f"{method.mean('seconds').value / 60:.1f}"] if has_times else []
            rows.append(cells)
        return Table(header, rows)

    def notes(self) -> list[str]:
        """What was measured, and what the numbers mean."""
        row = self.rows[0]
        starts = self._starts()
        return [
            f"{row.split}: {row.tasks} tasks, {row.tries} tries each, hash {row.split_hash}",
            "plus-minus: half a 95 % Student-t interval over seeds",
            *([f"before training: {starts}"] if starts else []),
            *([f"p: paired t test against {self.baseline}, equal seeds paired"] if self._has_tests(SUCCESS) else []),
            *self.detectable(),
        ]

    def _has_tests(self, measure: Measure) -> bool:
        return any(method.p is not None for method in self.compared(measure))

    def detectable(self) -> list[str]:
        """Which difference the first table could have shown, from the spread of the baseline's own seeds.

        Where the baseline itself has gained less than that in training, a better method had nothing to be better at,
        and an absence of differences says nothing. Empty without several seeds of a baseline and another method.
        """
        measure = self.measures[0]
        baseline = self.compared(measure)[0]
        if self.baseline == BEFORE or len(self.labels) < 2 or len(baseline.rows) < 2:
            return []
        after = baseline.numbers("after")
        shared = [method.numbers("after").keys() & after.keys() for method in self.compared(measure)[1:]]
        pairs = min((len(seeds) for seeds in shared if len(seeds) > 1), default=len(after))
        smallest = detectable_difference(list(after.values()), pairs=pairs)
        seeds = f"{pairs} seeds show a difference of {measure.unit.amount(smallest)} or more"
        spread = f"{self.baseline}'s seeds" if pairs == len(after) else f"{self.baseline}'s {len(after)} seeds"
        notes = [f"{seeds} (80 % power, spread of {spread})"]
        gains = _rises(baseline.numbers("before"), after)
        if gains and (gain := math.fsum(gains) / len(gains)) < smallest:
            amount = measure.unit.amount(gain)
            notes.append(f"this table cannot tell methods apart: {self.baseline} itself gained {amount} in training")
        return notes

    def _starts(self) -> str:
        """The different results before training; empty without any."""
        rates = ", ".join(sorted({percent(row.before) for row in self.rows if row.before is not None}))
        if self.measures == [SUCCESS] or not rates:
            return f"{rates} %" if rates else ""
        rewards = sorted({row.reward_before for row in self.rows if row.reward_before is not None})
        return f"mean reward {', '.join(reward_number(reward) for reward in rewards)}; success {rates} %"

    def caption(self, measure: Measure = SUCCESS) -> str:
        """A caption for a table in a paper: what was measured, on which tasks, and the test."""
        row = self.rows[0]
        episodes = "one episode" if row.tries == 1 else f"{row.tries} episodes"
        name = measure.name.capitalize() if measure in FIRST else measure.name
        number = f"{name} in per cent" if measure.unit is PERCENT else name
        sentences = [f"{number} on {row.split} ({row.tasks} tasks, {episodes} each, hash {row.split_hash})."]
        if measure in FIRST:
            sentences.append("Area: mean over training.")
        if len(self.rows) > len(self.labels):
            sentences.append("Means over seeds, ± half a 95 % Student t interval.")
        if self._has_tests(measure if measure in FIRST else SUCCESS):
            sentences.append(f"p: paired t test over seeds against {self.baseline}, with Holm's correction.")
        return " ".join(sentences)

    def captions(self) -> list[str]:
        """The captions of :meth:`tables`."""
        return [self.caption(measure) for measure in self.measures]

    def lines(self, width: int = WIDTH) -> list[str]:
        """Tables and notes in ASCII, at most ``width`` columns wide; columns that do not fit form a second table."""
        tables = self.tables()
        notes = self.notes()
        if any(name.startswith("minus ") for name in tables[0].header):
            unit = "in points" if self.measures == [SUCCESS] else "in reward, and of success in points"
            notes.append(f"difference: {unit}, to {self.baseline}")
        below = [line for note in notes for line in textwrap.wrap(ascii_only(note), width)]
        return [*(line for table in tables for line in (*_fitting_lines(table, width), "")), *below]

    def record(self) -> dict[str, dict[str, object]]:
        """JSON-ready values by method; of mean rewards, if these come first, as ``reward`` of a method."""
        records = {
            method.label: {"seeds": [row.seed for row in method.rows], **method.record()} for method in self.methods
        }
        if REWARD in self.measures:
            for method in self.compared(REWARD):
                seeds = records[method.label]["seeds"]
                records[method.label]["reward"] = {"seeds": seeds, **method.record()}
        return records


def _rises(before: Mapping[int, float], after: Mapping[int, float]) -> list[float]:
    """The differences of the seeds that both have."""
    rises = [after[seed] - before.get(seed, math.nan) for seed in after]
    return [rise for rise in rises if not math.isnan(rise)]


def gap_and_p(method: Method) -> list[str]:
    """The cells of the difference to the baseline and of its p-value."""
    gap = method.measure.unit.spread(method.gap, signed=True) if method.gap else ""
    return [gap, "" if method.p_holm is None else p_value(method.p_holm)]


def narrow_table(table: Table) -> Table:
    """The table in ASCII, whose column of differences does not name the baseline."""
    header = ["difference" if name.startswith("minus ") else name for name in table.header]
    return replace(table, header=header, rows=[[cell.replace("±", "+-") for cell in row] for row in table.rows])


def _fitting_lines(table: Table, width: int) -> list[str]:
    """The lines of a table; columns that do not fit form a second one below it."""
    table = narrow_table(table)
    moved_columns: list[str] = []
    while not table.without(*moved_columns).fits(width) and len(moved_columns) < len(MOVABLE):
        moved_columns.append(MOVABLE[len(moved_columns)])
    if not moved_columns or not table.without(*moved_columns).fits(width):
        return table.lines(width)
    second = table.without(*(name for name in table.header[1:] if name not in moved_columns))
    return [*table.without(*moved_columns).lines(width), "", *second.lines(width)]


def _labels(rows: Sequence[RunRow], baseline: str | None) -> list[str]:
    """The labels, the baseline first; InvalidArgument for rows that cannot be compared."""
    if not rows:
        raise InvalidArgument("there is no finished run: a run needs its evaluation after training")
    task_sets = {(row.split, row.split_hash) for row in rows}
    if len(task_sets) > 1:
        names = ", ".join(f"{split} ({code})" for split, code in sorted(task_sets))
        raise InvalidArgument(f"runs measured on different tasks cannot be compared: {names}")
    labels = list(dict.fromkeys(row.label for row in rows))
    if baseline == BEFORE and BEFORE not in labels:
        for row in rows:
            if row.before is None:
                raise InvalidArgument(f"{row.label}, seed {row.seed}, was not measured before training")
        return labels
    if baseline is not None and baseline not in labels:
        raise InvalidArgument(f"no run is called {baseline!r}", advice=f"there are {', '.join([*labels, BEFORE])}")
    return sorted(labels, key=lambda label: label != baseline)


def study_of(
    groups: Mapping[str, Sequence[Run]],
    files: Sequence[Path] = (),
    baseline: str | None = None,
    split: str | None = None,
    pass_at: Sequence[int] | None = None,
) -> Study:
    """One study of runs by label and of files of rows.

    pass_at: the k of pass@k that the rows of runs have; by default those of :func:`gagpo.eval.results.measures_of_k`.

    Raises:
        BadResult: a file has no rows.
        InvalidArgument: the runs cannot be compared.
    """
    rows = [row for path in files for row in read_rows(path)]
    for label, group in groups.items():
        results = [
            evaluation.result for run in group if (evaluation := run.last(split)) and evaluation.stage == "after"
        ]
        for other in results[1:]:
            require_same_task_set(f"{label}, first seed", results[0], f"{label}, another", other)
        numbered = (row_of(label, run, i, split, pass_at=pass_at) for i, run in enumerate(group, 1))
        rows += [row for row in numbered if row]
    return Study.of(rows, baseline)


def has_rows(groups: Mapping[str, Sequence[Run]], split: str | None = None) -> bool:
    """Whether any run has been evaluated after training, so that :func:`study_of` has a row."""
    return any(row_of(label, run, split=split) for label, group in groups.items() for run in group)


def row_of(
    label: str,
    run: Run,
    number: int = 1,
    split: str | None = None,
    stage: str = "after",
    pass_at: Sequence[int] | None = None,
) -> RunRow | None:
    """One run in numbers, or None before its final evaluation.

    number: the seed if the folder's name tells none.
    stage: ``after``, or ``average`` for the averaged weights.
    pass_at: as in :func:`study_of`.
    """
    split = split or next(iter(run.splits()), None)
    stages = {evaluation.stage: evaluation.result for evaluation in run.evaluations if evaluation.split == split}
    after, before = stages.get(stage), stages.get("before")
    if after is None or split is None:
        return None
    seed_in_name = re.search(r"[-_.](?:seed|s)?[-_]?(\d{1,9})$", run.name)
    turns, success = run.series(SUCCESS_RATE, x="turns_total")
    reward_turns, rewards = run.series(REWARD_MEAN, x="turns_total")
    return RunRow(
        label=label,
        seed=int(seed_in_name[1]) if seed_in_name else number,
        split=split,
        split_hash=after.task_set.split_hash,
        tasks=after.task_set.tasks,
        tries=after.task_set.tries,
        before=before.success.value if before else None,
        after=after.success.value,
        reward_after=after.mean_reward.value,
        reward_before=before.mean_reward.value if before else None,
        area=area_under_curve(turns, success) if turns else after.success.value,
        reward_area=area_under_curve(reward_turns, rewards) if reward_turns else after.mean_reward.value,
        graded=REWARD_MEAN in run.headline,
        reports_success=SUCCESS_RATE in run.headline,
        tokens_total=run.metrics[-1].get("tokens_total", 0.0) if run.metrics else 0.0,
        seconds=math.fsum(run.seconds().values()) if run.metrics else None,
        turns=turns,
        success=success,
        task_successes=[task.successes for task in after.tasks],
        at_k=_rates(label, after, pass_at),
        at_k_before=_rates(f"{label} before training", before, pass_at) if before else None,
    )


def _rates(label: str, result: EvalResult, pass_at: Sequence[int] | None) -> Rates | None:
    """The means over tasks by measure and k; None with one episode per task, unless ``pass_at`` names a k."""
    measures = measures_of_k({label: result}, pass_at)
    return by_name_and_k(measures, lambda measure: float(measure.values(result.tasks).mean())) or None


def curves_of(files: Sequence[Path]) -> dict[str, list[Run]]:
    """The iterations of the runs in files of rows, by label, as :func:`gagpo.eval.curves.plot_curves` draws them.

    A run with a row for each of several splits is taken once. Rows of runs that report no success have no curve.
    """
    groups: dict[str, list[Run]] = {}
    drawn: set[tuple[str, int]] = set()
    for row in (row for path in files for row in read_rows(path)):
        if (row.label, row.seed) in drawn or not row.reports_success:
            continue
        drawn.add((row.label, row.seed))
        points = zip(row.turns, row.success, strict=False)
        metrics = tuple(
            {"iteration": float(number), "turns_total": turns, SUCCESS_RATE: success}
            for number, (turns, success) in enumerate(points, 1)
        )
        groups.setdefault(row.label, []).append(Run(Path(f"{row.label}-seed{row.seed}"), metrics, 0, ()))
    return groups


def read_rows(path: Path) -> list[RunRow]:
    """The rows of a file, one JSON object per line; :class:`BadResult` tells line and key of a bad one."""
    lines = read_text(path).removeprefix("\ufeff").split("\n")  # splitlines() would end a line within a JSON string
    rows = [read_as(RunRow, line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    rows = [row.model_copy(update={"label": PRESETS.get(row.label, row.label)}) for row in rows]  # of earlier versions
    if not rows:
        raise BadResult("holds no rows", where=path)
    return rows
