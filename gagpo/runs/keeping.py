"""The checkpoints of a run that are kept, and the one that a name means.

The best one is chosen by a training metric, not by an evaluation panel, whose result would then be biased. It depends
only on the logged metrics and the existing checkpoints, so that a resumed run keeps the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import AVERAGE, Checkpoint
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE, headline_of_rows
from gagpo.runs.metrics import metric_rows
from gagpo.runs.run_folder import BEST, EMA, enough
from gagpo.settings import SettingsError, TrainingSettings

BEST_OVER = 10  # iterations over which the metric ``training.best_metric`` is averaged


def smoothed(rows: Sequence[Mapping[str, float]], criterion: str, over: int) -> dict[int, float]:
    """The running mean of ``criterion`` over at most ``over`` iterations, by the last one. Only finite values count."""
    means = {}
    for end in range(1, len(rows) + 1):
        values = [float(row[criterion]) for row in rows[max(0, end - over) : end] if criterion in row]
        values = [value for value in values if math.isfinite(value)]
        if values:
            means[int(rows[end - 1]["iteration"])] = sum(values) / len(values)
    return means


def best_of(iterations: Iterable[int], rows: Sequence[Mapping[str, float]], training: TrainingSettings) -> int | None:
    """The iteration with the highest smoothed criterion (the last of equals); None without a criterion.

    Where no success is reported, the mean reward takes the place of the success rate, by which all would be equal.
    """
    if training.best_metric is None:
        return None
    criterion: str = training.best_metric
    if criterion == SUCCESS_RATE and criterion not in headline_of_rows(rows):
        criterion = REWARD_MEAN
    means = smoothed(rows, criterion, BEST_OVER)
    measured = [iteration for iteration in iterations if iteration in means]
    return max(measured, key=lambda iteration: (means[iteration], iteration), default=None)


def planned_of(iterations: Iterable[int], rows: Sequence[Mapping[str, float]], training: TrainingSettings) -> list[int]:
    """Those of ``iterations`` that an uninterrupted run saves: every ``save_every`` and the last, in order.

    An interruption saves another one, to resume from. It must not count, or an interrupted run would end with other
    checkpoints and another best one.
    """
    turns = {int(row["iteration"]): row.get("turns_total", 0.0) for row in rows}
    return [
        iteration
        for iteration in sorted(iterations)
        if iteration % training.save_every == 0 or enough(training, iteration, turns.get(iteration, 0.0))
    ]


def protected(
    folder: Path, iteration: int, rows: Sequence[Mapping[str, float]], training: TrainingSettings
) -> set[int]:
    """The iterations whose checkpoints stay when that of ``iteration`` is written."""
    iterations = {checkpoint.iteration for checkpoint in checkpoints.checkpoints(folder)} | {iteration}
    planned = planned_of(iterations, rows, training)
    best = best_of(planned, rows, training)
    return {iteration, *planned[-training.max_checkpoints :]} | (set() if best is None else {best})


def find_checkpoint(run: Path, which: str | None, training: TrainingSettings) -> Checkpoint:
    """A run's checkpoint, verified.

    which: an iteration in digits, ``best``, ``ema`` (the averaged weights of the last one), or None for the last.

    Raises:
        SettingsError: there is no such checkpoint.
        CheckpointError: it is damaged.
    """
    by_iteration = {checkpoint.iteration: checkpoint for checkpoint in checkpoints.checkpoints(run / "checkpoints")}
    if not by_iteration:
        raise SettingsError(f"run {run} has no checkpoint yet", advice="train it first")
    checkpoint = by_iteration[max(by_iteration)]
    if which == BEST:
        rows = metric_rows(run / "metrics.jsonl")[0]
        best = best_of(planned_of(by_iteration, rows, training) or by_iteration, rows, training)
        if best is None:
            raise SettingsError(
                "has no best checkpoint: training.best_metric is not set or was never logged",
                key="training.best_metric",
                where=f"run {run}",
            )
        checkpoint = by_iteration[best]
    elif which == EMA:
        if checkpoint.average is None:
            raise SettingsError(
                "has no average of its weights: training.ema is false", key="training.ema", where=f"run {run}"
            )
        checkpoint = replace(checkpoint, weights=AVERAGE)
    elif which is not None:
        if int(which) not in by_iteration:
            raise SettingsError(
                f"run {run} has no checkpoint of iteration {which}", advice=f"choose one of {sorted(by_iteration)}"
            )
        checkpoint = by_iteration[int(which)]
    checkpoint.verify()
    return checkpoint
