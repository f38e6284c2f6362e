"""Read a run folder (metrics, evaluations, settings), including that of a killed run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gagpo import algorithms
from gagpo.base.core_schema import parse_yaml
from gagpo.base.errors import InvalidArgument
from gagpo.eval.results import EvalResult
from gagpo.runs.headline import Headline, Outcomes, joint, outcomes_of_rows
from gagpo.runs.metrics import read_metrics
from gagpo.runs.reading import BadResult, read_text
from gagpo.runs.register import Display, environments_of, metrics_in

LABEL = re.compile(r"(?:(before|after|average)|iteration-(\d{1,9}))-(.+)", re.DOTALL)
SEED = re.compile(r"[-_.](?:seed|s)[-_]?\d+$")
SECRET = re.compile(r"(?i)api_?key|secret|passw|credential|authorization|token$")
URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
HIDDEN = "(not shown)"
LONGEST = 200  # characters of one setting
MOST_VALUES = 20_000  # of a settings file; YAML aliases can multiply without end
STAGES = ("before", "iteration", "after", "average", "")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run.

    label: the name of its file, such as ``after-valid_unseen``.
    stage: before, iteration, after or average; empty for any other label.
    iteration: iterations done before it; None if the label does not tell.
    """

    label: str
    stage: str
    split: str
    iteration: int | None
    result: EvalResult


@dataclass(frozen=True)
class Run:
    """The content of a run folder.

    metrics: one mapping per iteration, in order; an iteration repeated after a resume appears once.
    broken_lines: number of unreadable lines in ``metrics.jsonl``.
    evaluations: from before training to after it.
    """

    folder: Path
    metrics: tuple[dict[str, float], ...]
    broken_lines: int
    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def label(self) -> str:
        """The name without a seed at its end (``-seed3``, ``_s3``)."""
        return SEED.sub("", self.name)

    @cached_property
    def settings(self) -> dict[str, str]:
        """Its settings by dotted name, as short texts without secrets; empty if they cannot be read."""
        try:
            return dict(_flat(shown_settings(self.folder / "config.yaml"), ""))
        except BadResult:
            return {}

    @property
    def algorithm(self) -> str:
        """The name of its algorithm or credit, with the settings that differ from the preset; empty if unknown."""
        names = ("algorithm", "algorithm.preset", "algorithm.credit.name", "algorithm.credit")
        name = next((self.settings[name] for name in names if name in self.settings), "")
        return ", ".join([name, *_changes(name, self.settings)])

    @cached_property
    def outcomes(self) -> Outcomes:
        """What occurred in training and evaluations, which decides the numbers that come first."""
        evaluated = joint(evaluation.result.outcomes for evaluation in self.evaluations)
        return outcomes_of_rows(self.metrics) | evaluated

    @property
    def headline(self) -> Headline:
        """Which numbers are shown first."""
        return self.outcomes.headline

    @property
    def envs(self) -> list[str]:
        """The names of its environments if it has several."""
        return environments_of(dict.fromkeys(key for row in self.metrics for key in row))

    @property
    def environment(self) -> str:
        """The id of its environment, or the names of several; empty if unknown."""
        ids = [evaluation.result.task_set.environment for evaluation in self.evaluations]
        return self.settings.get("environment.id", "") or " + ".join(self.envs) or next(iter(ids), "")

    def series(self, key: str, x: str = "iteration") -> tuple[list[float], list[float]]:
        """``(x, y)`` of every iteration that has both, x strictly rising."""
        xs: list[float] = []
        ys: list[float] = []
        for row in self.metrics:
            if key in row and x in row and (not xs or row[x] > xs[-1]):
                xs.append(row[x])
                ys.append(row[key])
        return xs, ys

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each part of the iterations, by its caption; empty if they were not logged."""
        spent = {metric.caption: math.fsum(self.series(metric.name)[1]) for metric in metrics_in(Display.TIME)}
        return spent if any(spent.values()) else {}

    def at(self, iteration: int, x: str) -> float | None:
        """The value of ``x``, such as ``turns_total``, after ``iteration``; None if unknown."""
        if iteration == 0:
            return 0.0
        if x == "iteration":
            return float(iteration)
        values = [row[x] for row in self.metrics if row["iteration"] == iteration and x in row]
        return values[-1] if values else None

    def trained(self, split: str) -> list[Evaluation]:
        """The evaluations on ``split`` in order, without those of averaged weights."""
        return [
            evaluation
            for evaluation in self.evaluations
            if evaluation.split == split and evaluation.stage not in ("average", "")
        ]

    def last(self, split: str | None = None) -> Evaluation | None:
        """The last evaluation on ``split``, by default the first of :meth:`splits`; not of averaged weights.

        Without evaluations of a known stage, the last file.
        """
        chosen_split = split or next(iter(self.splits()), None)
        evaluations = self.trained(chosen_split) if chosen_split else []
        evaluations = evaluations or [evaluation for evaluation in self.evaluations if evaluation.split == chosen_split]
        return evaluations[-1] if evaluations else None

    def splits(self) -> list[str]:
        """The splits evaluated: those of the run's result before those of training alone, and unseen ones first."""
        names = {evaluation.split for evaluation in self.evaluations if evaluation.stage}
        at_ends = {evaluation.split for evaluation in self.evaluations if evaluation.stage not in ("iteration", "")}
        return sorted(names, key=lambda name: (name not in at_ends, "unseen" not in name, name))


def load_run(folder: Path) -> Run:
    """Read a run folder; :class:`BadResult` if it is not a run or a file cannot be read."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadResult("not a run folder (no such folder)", where=folder)
    metrics, broken = read_metrics(folder / "metrics.jsonl")
    last = int(metrics[-1]["iteration"]) if metrics else None
    evaluations = [
        _evaluation(path.stem, last, EvalResult.load(path)) for path in sorted((folder / "evals").glob("*.json"))
    ]
    if not metrics and not evaluations:
        raise BadResult("not a run folder (neither metrics.jsonl nor evals/*.json in it)", where=folder)
    evaluations.sort(
        key=lambda evaluation: (STAGES.index(evaluation.stage), evaluation.iteration or 0, evaluation.label)
    )
    return Run(folder, tuple(metrics), broken, tuple(evaluations))


def read_label(label: str) -> tuple[str, str, int | None]:
    """Stage, split and iteration of a label such as ``iteration-0010-SPLIT``; the stage of other labels is empty."""
    match = LABEL.fullmatch(label)
    stage, iteration, split = match.groups() if match else ("", None, "")
    return stage or ("iteration" if match else ""), split, int(iteration) if iteration else None


def _evaluation(label: str, last: int | None, result: EvalResult) -> Evaluation:
    stage, split, iteration = read_label(label)
    at = {"before": 0, "after": last, "average": last}.get(stage, iteration)
    return Evaluation(label, stage, split or result.task_set.split, at, result)


def final_results(run: Path, labels: Iterable[str]) -> dict[str, EvalResult]:
    """The evaluations after training, by the label of their task set, as far as they exist."""
    files = {label: run / "evals" / f"after-{label}.json" for label in labels}
    return {label: EvalResult.load(path) for label, path in files.items() if path.exists()}


def group_runs(runs: Sequence[str | Path]) -> dict[str, list[Run]]:
    """Load run folders, each plain or as ``LABEL=FOLDER``, and group them by that label, else by :attr:`Run.label`."""
    groups: dict[str, list[Run]] = {}
    for text in map(str, runs):
        label, separator, folder = text.partition("=")
        if not separator or Path(text).is_dir():  # a folder may have a "=" in its name
            label = ""
            folder = text
        elif not label.strip():
            raise InvalidArgument(f"{text!r} has no label", advice="write LABEL=FOLDER or just the folder")
        run = load_run(Path(folder))
        groups.setdefault(label.strip() or run.label, []).append(run)
    return groups


def shown_settings(path: Path) -> object:
    """The content of a YAML file with secrets replaced; :class:`BadResult` for a file that cannot be read."""
    count = 0

    def without_secrets(value: object) -> object:
        nonlocal count
        count += 1
        if count > MOST_VALUES:
            raise BadResult(f"more than {MOST_VALUES:,} values are too many for the settings of a run", where=path)
        if isinstance(value, dict):
            return {key: HIDDEN if SECRET.search(str(key)) else without_secrets(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [without_secrets(inner) for inner in value]
        return URL_LOGIN.sub(HIDDEN, value) if isinstance(value, str) else value

    text = read_text(path)
    try:
        document = parse_yaml(text)
    except ValueError as error:
        raise BadResult(f"not YAML ({' '.join(str(error).split())[:200]})", where=path) from None
    return without_secrets(document)


def _flat(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value)[:LONGEST]


def _changes(preset: str, settings: dict[str, str]) -> list[str]:
    """The cells of an algorithm that differ from its preset, such as ``credit.lam=0.5``."""
    if preset not in algorithms.PRESETS:
        return []
    usual = dict(_flat(algorithms.load(preset).model_dump(mode="json"), "algorithm"))
    changed = [name for name, value in settings.items() if name.startswith("algorithm.") and usual.get(name) != value]
    new_components = [
        name.removesuffix("name") for name in changed if name.endswith(".name")
    ]  # their options are new too
    names = [name for name in changed if name.endswith(".name") or not name.startswith(tuple(new_components))]
    cells = {name.removeprefix("algorithm.").removesuffix(".name"): settings[name] for name in names}
    credit_first = sorted(cells, key=lambda cell: not cell.startswith("credit"))
    return [f"{cell}={cells[cell]}" for cell in credit_first if cell != "correction"]


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to ``window - 1`` values before it.

    >>> trailing_mean([1, 2, 3, 6], 2)
    [1.0, 1.5, 2.5, 4.5]
    """
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [math.fsum(values_within) / len(values_within) for values_within in windows]
