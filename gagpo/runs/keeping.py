"""Which checkpoints of a run are kept (the last ones and the best), and which one a name means.

The best is judged by what training itself measures, never by an evaluation panel: a panel that chose the checkpoint no
longer says how good it is. It is a function of the logged metrics and of the checkpoints that are there, so that a run
that was killed and resumed keeps the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import AVERAGE, Checkpoint
from gagpo.runs.metrics import metric_rows
from gagpo.runs.run_folder import AVERAGED, BEST
from gagpo.settings import SettingsError, TrainingSettings

BEST_OVER = 10  # iterations that ``training.best`` is the mean of


def smoothed(rows: Sequence[Mapping[str, float]], criterion: str, over: int) -> dict[int, float]:
    """The mean of ``criterion`` over each iteration and the ``over - 1`` before it (fewer at the start), by iteration.

    Values that are not finite are left out; an iteration without any has no mean.
    """
    means = {}
    for end in range(1, len(rows) + 1):  # the window that ends before this row
        values = [float(row[criterion]) for row in rows[max(0, end - over) : end] if criterion in row]
        values = [value for value in values if math.isfinite(value)]
        if values:
            means[int(rows[end - 1]["iteration"])] = sum(values) / len(values)
    return means


def best_of(iterations: Iterable[int], rows: Sequence[Mapping[str, float]], training: TrainingSettings) -> int | None:
    """The iteration, of those with a checkpoint, whose smoothed criterion is highest; the later of equals.

    None where no criterion is set or measured.
    """
    if training.best is None:
        return None
    means = smoothed(rows, training.best, BEST_OVER)
    measured = [iteration for iteration in iterations if iteration in means]
    return max(measured, key=lambda iteration: (means[iteration], iteration), default=None)


def spared(folder: Path, iteration: int, rows: Sequence[Mapping[str, float]], training: TrainingSettings) -> set[int]:
    """The iterations whose checkpoints stay, however old, once that of ``iteration`` has been written."""
    there = {one.iteration for one in checkpoints.checkpoints(folder)} | {iteration}
    best = best_of(there, rows, training)
    return set() if best is None else {best}


def chosen(run: Path, which: str | None, training: TrainingSettings) -> Checkpoint:
    """A run's checkpoint, verified: the last one (None), ``best``, or that of an iteration (a number in digits).

    ``average``: the last one, of which the averaged weights are meant.

    Raises SettingsError where there is none such, CheckpointError for a damaged one.
    """
    found = {one.iteration: one for one in checkpoints.checkpoints(run / "checkpoints")}
    if not found:
        raise SettingsError(f"run {run} has no checkpoint yet; train it first")
    if which == BEST:
        best = best_of(found, metric_rows(run / "metrics.jsonl")[0], training)
        if best is None:
            raise SettingsError(f"run {run} has no best checkpoint: training.best is not set, or was never measured")
        one = found[best]
    elif which in (None, AVERAGED):
        one = found[max(found)]
        if which == AVERAGED:
            if one.average is None:
                raise SettingsError(f"run {run} keeps no average of its weights: its training.average is false")
            one = replace(one, weights=AVERAGE)
    elif int(which) in found:
        one = found[int(which)]
    else:
        raise SettingsError(f"run {run} keeps no checkpoint of iteration {which}; it has {sorted(found)}")
    one.verify()
    return one
