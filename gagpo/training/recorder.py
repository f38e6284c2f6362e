"""Writes metrics, episodes, evaluations and checkpoints to the run folder, and reports events.

Only the first rank writes and reports; all ranks write a checkpoint together.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gagpo.data.episodes import Episode
from gagpo.distributed.ranks import Ranks
from gagpo.eval.evaluate import first_failure
from gagpo.eval.health import health_line
from gagpo.eval.results import EvalResult
from gagpo.learning.optimizer import moment_bytes
from gagpo.runs import keeping
from gagpo.runs.checkpoint import CheckpointError, Saver, Snapshot, checkpoints
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings, TrainingSettings
from gagpo.trackers import Trackers, tracking
from gagpo.training.events import EvaluationFinished, Event, IterationFinished, Report, Warned

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SMALL_FILES = 2**24  # bytes of tokenizer, state and manifest
GB = 1e9


class Recorder:
    """Writes and reports what happens in a run.

    rows: metrics of the run so far.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: RunSettings,
        tokenizer: PreTrainedTokenizerBase,
        report: Report | None,
        ranks: Ranks,
    ):
        self.folder, self.settings, self.ranks = folder, settings, ranks
        self.rows: list[Metrics] = []
        self._checkpoints = folder.path / "checkpoints"
        self._decode = lambda ids: str(tokenizer.decode(ids))
        self.saver = Saver(self._checkpoints, tokenizer, ranks)
        self._report = report
        self._trackers = Trackers({})
        self._health = ""

    @contextmanager
    def recording(self, iteration: int) -> Iterator[None]:
        """Record from ``iteration`` on, removing what was logged later; at the end everything is on disk."""
        names = self.settings.trackers if self.ranks.first else ()
        if self.ranks.first:
            self.rows = self.folder.rewind(iteration)
        with tracking(names, self.folder.path, self.settings.model_dump(mode="json"), iteration) as self._trackers:
            try:
                yield
            finally:
                self.saver.wait()

    def report(self, event: Event) -> None:
        if self._report and self.ranks.first:
            self._report(event)

    def iteration(self, metrics: Metrics, played: Sequence[Episode], left: float) -> None:
        """Record an iteration; raises the error of a checkpoint that failed in the background.

        left: estimated seconds to the end of the run.
        """
        if self.ranks.first:
            number, every = int(metrics["iteration"]), self.settings.training.save_episodes_every
            if every and (number == 1 or number % every == 0):
                self.folder.save_episodes(f"train-{number:04d}", played, decode=self._decode)
            self.folder.log(metrics)
            self.rows.append(metrics)
            self._trackers.log(metrics, number)
            self.report(IterationFinished(metrics, left))
            self._report_health()
        self.saver.check()

    def _report_health(self) -> None:
        """Report when the run looks as if it cannot learn, and when the reason changes."""
        line = health_line(self.rows)
        kind = re.sub(r"\d+", "", line)  # the same words with other numbers are not repeated
        if kind and kind != self._health:
            self.report(Warned(line))
        self._health = kind

    def save_offenders(self, iteration: int, episodes: Sequence[Episode]) -> Path:
        """Write the episodes that made the loss of ``iteration`` NaN, with their tokens; returns the file."""
        label = f"nonfinite-{iteration:04d}"
        if self.ranks.first:
            self.folder.save_episodes(label, episodes, tokens=True, decode=self._decode)
        return self.folder.episodes(label)

    def evaluation(self, label: str, result: EvalResult, episodes: Sequence[Episode]) -> None:
        """Record an evaluation."""
        if self.ranks.first:
            self.folder.save_episodes(label, episodes)
            result.save(self.folder.evaluation(label))
        self.report(EvaluationFinished(label, result, first_failure(episodes)))

    def has_measured(self, label: str) -> bool:
        """Whether there is a result of this evaluation already."""
        return self.ranks.of_first(lambda: self.folder.evaluation(label).exists())

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def require_room_for_run(self, checkpoint_bytes: int) -> None:
        """Raise CheckpointError if the disk has no room for the checkpoints that the run will keep."""
        training = self.settings.training
        self.ranks.of_first(lambda: require_room_for_run(self._checkpoints, checkpoint_bytes, training))

    def save(self, iteration: int, checkpoint_bytes: int, take: Callable[[], Snapshot]) -> None:
        """Begin to write a snapshot when the one before is written; all ranks together."""
        self.saver.wait()
        self.ranks.of_first(lambda: require_room(self._checkpoints, checkpoint_bytes))
        taken, training = take(), self.settings.training
        spared = keeping.spared(self._checkpoints, iteration, self.rows, training)
        self.saver.save(iteration, taken, training.max_checkpoints, spared)


def checkpoint_bytes(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    critic: torch.nn.Module | None,
    adapter: bool,
    averaged: bool = False,
) -> int:
    """Bytes of a checkpoint. adapter: only trained parameters are written. averaged: the average is written too."""
    weights = (1 + averaged) * sum(_size(p) for p in model.parameters() if p.requires_grad or not adapter)
    values = sum(_size(x) for x in critic.state_dict().values()) if critic is not None else 0
    return weights + moment_bytes(optimizer) + values + SMALL_FILES


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def require_room_for_run(folder: Path, each: int, training: TrainingSettings) -> None:
    """Raise CheckpointError if the disk has no room for the most checkpoints that the run has at a time."""
    most = training.max_checkpoints + 1 + (training.best_metric is not None)  # while one more is written
    most = min(most, math.ceil(training.iterations / training.save_every))
    require_room(folder, each, most - len(checkpoints(folder)))


def require_room(folder: Path, each: int, count: int = 1) -> None:
    """Raise CheckpointError if ``count`` more checkpoints of ``each`` bytes do not fit the disk of ``folder``."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if count * each > free:
        need = "a checkpoint needs" if count == 1 else f"{count} checkpoints need"
        raise CheckpointError(
            f"{need} {count * each / GB:.3g} GB and {place} has {free / GB:.3g} GB free: make room, choose another "
            "place with --runs, or set a lower training.max_checkpoints or training.best_metric=null; earlier "
            "checkpoints are kept"
        )
