"""Reading a run folder: its metrics, evaluations and settings, tolerant of a run that was killed at any instant."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gagpo.base.errors import InvalidArgument
from gagpo.base.regular_file import read_bytes
from gagpo.eval.results import EvalResult
from gagpo.runs.metrics import read_metrics
from gagpo.runs.reading import BadResult

LABEL = re.compile(r"(?:(before|after|average)|iteration-(\d{1,9}))-(.+)", re.DOTALL)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run. ``stage`` is before, after or iteration, or empty for a label of another form.

    iteration: after how many iterations it was made (0 before training); None where the label does not tell.
    """

    label: str
    stage: str
    split: str
    iteration: int | None
    result: EvalResult


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    metrics: one mapping of numbers per iteration, in order; an iteration done again after a resume is held once.
    broken_lines: lines of ``metrics.jsonl`` that were torn or no object, the last one included.
    """

    folder: Path
    metrics: tuple[dict[str, float], ...]
    broken_lines: int
    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def algorithm(self) -> str:
        """The name of its algorithm (or of its credit), or nothing where the settings do not tell."""
        try:
            settings = yaml.safe_load(read_bytes(self.folder / "config.yaml").decode())
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            return ""
        found = settings.get("algorithm") if isinstance(settings, dict) else None
        if isinstance(found, dict):
            credit = found.get("credit")
            found = found.get("preset") or (credit.get("name") if isinstance(credit, dict) else credit)
        return found if isinstance(found, str) else ""

    def series(self, key: str, x: str = "iteration") -> tuple[list[float], list[float]]:
        """``(x, y)`` of every iteration that has both numbers, x rising strictly."""
        xs: list[float] = []
        ys: list[float] = []
        for row in self.metrics:  # what lacks one of both, or goes back, is left out
            if key in row and x in row and (not xs or row[x] > xs[-1]):
                xs.append(row[x])
                ys.append(row[key])
        return xs, ys

    def at(self, iteration: int, x: str) -> float | None:
        """The value of ``x`` (say, ``turns_total``) after ``iteration``; 0 before the first; None if unknown."""
        if iteration == 0:
            return 0.0
        if x == "iteration":
            return float(iteration)
        found = [row[x] for row in self.metrics if row["iteration"] == iteration and x in row]
        return found[-1] if found else None

    def trained(self, split: str) -> list[Evaluation]:
        """The evaluations on ``split`` of the weights that were trained, in order: a curve. Their average is none."""
        return [one for one in self.evaluations if one.split == split and one.stage not in ("average", "")]

    def last(self, split: str | None = None) -> Evaluation | None:
        """The last evaluation on ``split`` (the first of :meth:`splits` by default) of the weights that were trained.

        Of a folder that holds none of a named stage, what comes last; None where there is nothing of the split.
        """
        wanted = split or next(iter(self.splits()), None)
        found = self.trained(wanted) if wanted else []
        found = found or [one for one in self.evaluations if one.split == wanted]
        return found[-1] if found else None

    def splits(self) -> list[str]:
        """The splits evaluated, unseen ones first."""
        names = {one.split for one in self.evaluations if one.stage}
        return sorted(names, key=lambda name: ("unseen" not in name, name))


def load_run(folder: Path) -> Run:
    """Read a run folder. Missing metrics or evaluations are empty; a broken evaluation raises :class:`BadResult`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadResult(f"{folder}: not a run folder (no such folder)")
    metrics, broken = read_metrics(folder / "metrics.jsonl")
    last = int(metrics[-1]["iteration"]) if metrics else None
    evaluations = [
        _evaluation(path.stem, last, EvalResult.load(path)) for path in sorted((folder / "evals").glob("*.json"))
    ]
    if not metrics and not evaluations:
        raise BadResult(f"{folder}: not a run folder (neither metrics.jsonl nor evals/*.json in it)")
    order = {"before": 0, "iteration": 1, "after": 2, "average": 3, "": 4}
    evaluations.sort(key=lambda one: (order[one.stage], one.iteration or 0, one.label))
    return Run(folder, tuple(metrics), broken, tuple(evaluations))


def read_label(label: str) -> tuple[str, str, int | None]:
    """Stage, split and iteration of ``before-SPLIT``, ``iteration-0010-SPLIT``, ``after-SPLIT``, ``average-SPLIT``.

    A label of another form has no stage.
    """
    match = LABEL.fullmatch(label)
    stage, iteration, split = match.groups() if match else ("", None, "")
    return stage or ("iteration" if match else ""), split, int(iteration) if iteration else None


def _evaluation(label: str, last: int | None, result: EvalResult) -> Evaluation:
    stage, split, iteration = read_label(label)
    at = {"before": 0, "after": last, "average": last}.get(stage, iteration)
    return Evaluation(label, stage, split or result.panel.split, at, result)


def saved_evaluation(run: Path, label: str) -> EvalResult | None:
    """The evaluation ``evals/LABEL.json`` of a run folder; None where it was not made."""
    path = run / "evals" / f"{label}.json"
    return EvalResult.load(path) if path.exists() else None


def group_runs(runs: Sequence[str | Path]) -> dict[str, list[Run]]:
    """Load run folders and group them by label.

    Each is ``LABEL=FOLDER``, or a folder whose name without a final seed (``-seed3``, ``_s3``) is the label.

    Raises :class:`BadResult` for a folder that is not a run, ValueError for none or an empty label.
    """
    groups: dict[str, list[Run]] = {}
    for one in runs:
        # A folder whose own name has a "=" is a folder.
        text = str(one)
        label, separator, folder = text.partition("=")
        if not separator or Path(text).is_dir():
            label, folder = "", text
        elif not label.strip():
            raise InvalidArgument(f"{text!r} names no label: write LABEL=FOLDER or just the folder")
        run = load_run(Path(folder))
        groups.setdefault(label.strip() or re.sub(r"[-_.](seed|s)[-_]?\d+$", "", run.name), []).append(run)
    if not groups:
        raise InvalidArgument("no run folder was given")
    return groups


def folder_of(run: str | Path) -> Path:
    """The folder of ``LABEL=FOLDER`` or of a plain folder."""
    _, separator, folder = str(run).partition("=")
    return Path(folder) if separator and not Path(run).is_dir() else Path(run)


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to ``window - 1`` before it.

    >>> trailing_mean([1, 2, 3, 6], 2)
    [1.0, 1.5, 2.5, 4.5]
    """
    if window < 1:
        raise InvalidArgument(f"a window holds at least one value, got {window}")
    return [
        math.fsum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i + 1 - window) : i + 1]]
    ]
