"""Many runs in one table: means over seeds with intervals, paired tests against a baseline, and cost.

Each run is a row of numbers (:class:`RunRow`), from its folder or from a file of rows such as ``lab/results/*.jsonl``.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from gagpo.base.errors import InvalidArgument
from gagpo.base.renamed import PRESETS
from gagpo.base.tables import WIDTH, Table, ascii_only
from gagpo.eval.at_k import rates_at_k
from gagpo.eval.compare import require_same_task_set
from gagpo.eval.runs import Run
from gagpo.eval.statistics import (
    Interval,
    area_under_curve,
    detectable_difference,
    holm,
    mean_over_seeds,
    paired_t,
)
from gagpo.eval.summary import p_value, percent, reward_number
from gagpo.runs.reading import BadResult, Document, read_as, read_text

K = Annotated[str, StringConstraints(pattern="^[1-9][0-9]{0,5}$")]
Rates = dict[str, dict[K, float]]
"""Means over tasks by measure (``pass@k``) and k."""


class RunRow(Document):
    """One run in numbers.

    tries: episodes of each task.
    before, after: success rate before and after training, from 0 to 1.
    reward_after, reward_before: mean reward of an episode after and before training.
    area, reward_area: mean success rate and mean reward in training, over environment turns.
    graded: whether mean rewards come first (:class:`gagpo.runs.headline.Headline`).
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


@dataclass(frozen=True)
class Method:
    """The runs of one label.

    rows: one per seed.
    gap: success after training minus the baseline's, paired by seed; None if no seed is shared.
    p: of the paired t test over the shared seeds; None if there are fewer than two.
    p_holm: ``p`` corrected for all methods of the table.
    """

    label: str
    rows: tuple[RunRow, ...]
    gap: Interval | None = None
    p: float | None = None
    p_holm: float | None = None

    def mean(self, key: str) -> Interval:
        """Mean of a number over the seeds; NaN if a seed lacks it."""
        values = [getattr(row, key) for row in self.rows]
        if any(value is None for value in values):
            return Interval(math.nan, math.nan, math.nan)
        return mean_over_seeds(values)


BEFORE = "before"
"""Baseline: each run's own model before training."""

MOVABLE = ("minutes", "1,000 tokens", "reward after", "area %", "area", "seeds")
"""Columns that move to a second table on a narrow terminal, in this order."""


@dataclass(frozen=True)
class Study:
    """Methods to compare.

    methods: the baseline first.
    baseline: its label, or ``before``.
    in_rewards: whether its numbers are mean rewards in place of success rates.
    rewards: the same runs in mean rewards; None unless these come first.
    """

    methods: tuple[Method, ...]
    baseline: str
    in_rewards: bool = False
    rewards: Study | None = None

    @classmethod
    def of(cls, rows: Sequence[RunRow], baseline: str | None = None) -> Study:
        """Group rows by label. By default the first label is the baseline; a single one is compared with its start.

        Raises:
            InvalidArgument: there are no rows, or they cannot be compared.
        """
        study = cls._of_numbers(rows, baseline)
        if not any(row.graded for row in rows) or any(row.reward_area is None for row in rows):
            return study
        rewards = [
            row.model_copy(update={"before": row.reward_before, "after": row.reward_after, "area": row.reward_area})
            for row in rows
        ]
        return replace(study, rewards=replace(cls._of_numbers(rewards, baseline), in_rewards=True))

    @classmethod
    def _of_numbers(cls, rows: Sequence[RunRow], baseline: str | None) -> Study:
        """The study of ``before``, ``after`` and ``area``."""
        labels = _labels(rows, baseline)
        alone = len(labels) == 1 and all(row.before is not None for row in rows)
        baseline = baseline or (BEFORE if alone else labels[0])
        grouped = {label: tuple(row for row in rows if row.label == label) for label in labels}
        for label, method_rows in grouped.items():
            if len({row.seed for row in method_rows}) < len(method_rows):
                raise InvalidArgument(
                    "two runs have the same seed", where=label, advice="name methods as LABEL=FOLDER to tell them apart"
                )
        of_seed = {row.seed: row.after for row in grouped.get(baseline, ())}
        gaps: dict[str, list[float]] = {}
        for label, method_rows in grouped.items():
            references = [of_seed.get(row.seed) if baseline in grouped else row.before for row in method_rows]
            gap = [row.after - other for row, other in zip(method_rows, references, strict=True) if other is not None]
            if gap and label != baseline:
                gaps[label] = gap
        p_values = {label: p for label, gap in gaps.items() if len(gap) > 1 and not math.isnan(p := paired_t(gap))}
        corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        means = {label: mean_over_seeds(gap) for label, gap in gaps.items()}
        methods = [
            Method(label, method_rows, means.get(label), p_values.get(label), corrected.get(label))
            for label, method_rows in grouped.items()
        ]
        return cls(tuple(methods), baseline)

    @property
    def rows(self) -> list[RunRow]:
        """Every run."""
        return [row for method in self.methods for row in method.rows]

    def tables(self) -> list[Table]:
        """Mean rewards if they come first, and success unless no run reports it."""
        if self.rewards is None:
            return [self.table()]
        return [self.rewards.table(), *([self.table()] if any(row.reports_success for row in self.rows) else [])]

    def table(self) -> Table:
        """One row per method, the best mean first."""
        has_rewards = (
            not self.in_rewards
            and self.rewards is None
            and any(abs(row.reward_after - row.after) > 0.005 for row in self.rows)
        )
        has_times = all(row.seconds is not None for row in self.rows)
        numbers = ["area", "reward after"] if self.in_rewards else ["area %", "after %"]
        text = spread_of_rewards if self.in_rewards else spread
        header = ["", "seeds", *numbers, f"minus {self.baseline}", "p (Holm)"]
        header += [*(["reward after"] if has_rewards else []), "1,000 tokens", *(["minutes"] if has_times else [])]
        rows = []
        for method in sorted(self.methods, key=lambda method: -method.mean("after").value):
            cells = [method.label, str(len(method.rows)), text(method.mean("area")), text(method.mean("after"))]
            cells.append(text(method.gap, signed=True) if method.gap else "")
            cells.append("" if method.p_holm is None else p_value(method.p_holm))
            cells += [f"{method.mean('reward_after').value:.2f}"] if has_rewards else []
            cells.append(f"{method.mean('tokens_total').value / 1000:,.0f}")
            cells += [f"{method.mean('seconds').value / 60:.1f}"] if has_times else []
            rows.append(cells)
        return Table(header, rows)

    def notes(self) -> list[str]:
        """What was measured, and what the numbers mean."""
        row = self.methods[0].rows[0]
        has_tests = any(method.p is not None for method in self.methods)
        starts = self._starts()
        return [
            f"{row.split}: {row.tasks} tasks, {row.tries} tries each, hash {row.split_hash}",
            "plus-minus: half a 95 % Student-t interval over seeds",
            *([f"before training: {starts}"] if starts else []),
            *([f"p: paired t test against {self.baseline}, equal seeds paired"] if has_tests else []),
            *(self.rewards or self).detectable(),
        ]

    def detectable(self) -> list[str]:
        """Which difference the table could have shown, from the spread of the baseline's own seeds.

        Where the baseline itself has gained less than that in training, a better method had nothing to be better at,
        and an absence of differences says nothing. Empty without several seeds of a baseline and another method.
        """
        rows = self.methods[0].rows
        if self.baseline == BEFORE or len(self.methods) < 2 or len(rows) < 2:
            return []
        smallest = detectable_difference([row.after for row in rows])
        seeds = f"{len(rows)} seeds show a difference of {self._amount(smallest)} or more"
        notes = [f"{seeds} (80 % power, spread of {self.baseline}'s seeds)"]
        gains = [row.after - row.before for row in rows if row.before is not None]
        if gains and (gain := math.fsum(gains) / len(gains)) < smallest:
            notes.append(
                f"this table cannot tell methods apart: {self.baseline} itself gained {self._amount(gain)} in training"
            )
        return notes

    def _amount(self, difference: float) -> str:
        """A difference in the unit of the table."""
        return reward_number(difference) if self.in_rewards else f"{100 * difference:.1f} points"

    def _starts(self) -> str:
        """The different results before training; empty without any."""
        rates = ", ".join(sorted({percent(row.before) for row in self.rows if row.before is not None}))
        if self.rewards is None or not rates:
            return f"{rates} %" if rates else ""
        rewards = sorted({row.before for row in self.rewards.rows if row.before is not None})
        return f"mean reward {', '.join(reward_number(reward) for reward in rewards)}; success {rates} %"

    def caption(self, measure: str = "") -> str:
        """A caption for a table in a paper: what was measured, on which tasks, and the test.

        measure: the name of another measure of the same runs, such as pass@k.
        """
        row = self.methods[0].rows[0]
        episodes = "one episode" if row.tries == 1 else f"{row.tries} episodes"
        number = measure or ("Mean reward" if self.in_rewards else "Success in per cent")
        sentences = [f"{number} on {row.split} ({row.tasks} tasks, {episodes} each, hash {row.split_hash})."]
        if not measure:
            sentences.append("Area: mean over training.")
        if any(len(method.rows) > 1 for method in self.methods):
            sentences.append("Means over seeds, ± half a 95 % Student t interval.")
        if any(method.p is not None for method in self.methods):
            sentences.append(f"p: paired t test over seeds against {self.baseline}, with Holm's correction.")
        return " ".join(sentences)

    def captions(self) -> list[str]:
        """The captions of :meth:`tables`."""
        studies = [self] if self.rewards is None else [self.rewards, self]
        return [study.caption() for study, _ in zip(studies, self.tables(), strict=False)]

    def lines(self, width: int = WIDTH) -> list[str]:
        """Tables and notes in ASCII, at most ``width`` columns wide; columns that do not fit form a second table."""
        tables = self.tables()
        notes = self.notes()
        if any(name.startswith("minus ") for name in tables[0].header):
            unit = "in points" if self.rewards is None else "in reward, and of success in points"
            notes.append(f"difference: {unit}, to {self.baseline}")
        below = [line for note in notes for line in textwrap.wrap(ascii_only(note), width)]
        return [*(line for table in tables for line in (*_fitting_lines(table, width), "")), *below]

    def record(self) -> dict[str, dict[str, object]]:
        """JSON-ready values by method; of mean rewards, if these come first, as ``reward`` of a method."""
        records = self._record_of_methods()
        if self.rewards is not None:
            for label, record in self.rewards._record_of_methods().items():
                records[label]["reward"] = record
        return records

    def _record_of_methods(self) -> dict[str, dict[str, object]]:
        return {
            method.label: {
                "seeds": [row.seed for row in method.rows],
                "after": method.mean("after").record(),
                "gap": method.gap.record() if method.gap else None,
                "p": method.p,
                "p_holm": method.p_holm,
            }
            for method in self.methods
        }


def _fitting_lines(table: Table, width: int) -> list[str]:
    """The lines of a table; columns that do not fit form a second one below it."""
    header = ["difference" if name.startswith("minus ") else name for name in table.header]
    table = replace(table, header=header, rows=[[cell.replace("±", "+-") for cell in row] for row in table.rows])
    moved_columns: list[str] = []
    while not table.without(*moved_columns).fits(width) and len(moved_columns) < len(MOVABLE):
        moved_columns.append(MOVABLE[len(moved_columns)])
    if not moved_columns or not table.without(*moved_columns).fits(width):
        return table.lines(width)
    second = table.without(*(name for name in header[1:] if name not in moved_columns))
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


def spread(interval: Interval, signed: bool = False, scale: int = 100) -> str:
    """``72.2 ± 5.2`` in per cent; without the second part for a single seed.

    scale: 1 for a count, which has two decimals.
    """
    if math.isnan(interval.value):
        return ""
    half = (interval.high - interval.low) / 2
    plus = "+" if signed else ""
    digits = 1 if scale == 100 else 2
    tail = "" if math.isnan(half) or math.isinf(half) or half == 0 else f" ± {scale * half:.{digits}f}"
    return f"{scale * interval.value:{plus}.{digits}f}{tail}"


def spread_of_rewards(interval: Interval, signed: bool = False) -> str:
    """``0.125 ± 0.014``; without the second part for a single seed."""
    if math.isnan(interval.value):
        return ""
    half = (interval.high - interval.low) / 2
    numbers = (interval.value, half)
    tail = f" ± {reward_number(half, *numbers)}" if math.isfinite(half) and half else ""
    return f"{reward_number(interval.value, *numbers, signed=signed)}{tail}"


def study_of(
    groups: Mapping[str, Sequence[Run]],
    files: Sequence[Path] = (),
    baseline: str | None = None,
    split: str | None = None,
    pass_at: Sequence[int] | None = None,
) -> Study:
    """One study of runs by label and of files of rows.

    pass_at: the k of pass@k that the rows of runs have; by default those of :func:`gagpo.eval.at_k.shown_ks`.

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
    turns, success = run.series("success_rate", x="turns_total")
    reward_turns, rewards = run.series("reward_mean", x="turns_total")
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
        graded=run.headline.reward,
        reports_success=run.headline.success,
        tokens_total=run.metrics[-1].get("tokens_total", 0.0) if run.metrics else 0.0,
        seconds=math.fsum(run.seconds().values()) if run.metrics else None,
        turns=turns,
        success=success,
        task_successes=[task.successes for task in after.tasks],
        at_k=rates_at_k(label, after, pass_at),
        at_k_before=rates_at_k(f"{label} before training", before, pass_at) if before else None,
    )


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
            {"iteration": float(number), "turns_total": turns, "success_rate": success}
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
