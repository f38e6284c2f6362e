"""Writes metrics, episodes, evaluations and checkpoints to the run folder, and reports events.

Only the first rank writes and reports; all ranks write a checkpoint together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.agents.episodes import Episode
from gagpo.distributed.ranks import Ranks
from gagpo.eval.health import health_line
from gagpo.eval.results import EvalResult
from gagpo.runs import keeping
from gagpo.runs.checkpoint import Saver, Snapshot
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.trackers import Trackers, tracking
from gagpo.training import room
from gagpo.training.events import (
    EvaluationFinished,
    Event,
    HealthChanged,
    IterationFinished,
    Report,
    StepSkipped,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Recorder:
    """``rows`` are the metrics of the run so far: their file is read once, when recording begins."""

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
        self._decode = lambda token: str(tokenizer.decode(token))
        self.saver = Saver(self._checkpoints, tokenizer, ranks)
        self._report = report
        self._trackers = Trackers({})
        self._health = ""

    @contextmanager
    def recording(self, iteration: int) -> Iterator[None]:
        """Record from ``iteration`` on, dropping what was logged later; at the end everything is on disk."""
        names = self.settings.trackers if self.ranks.first else ()
        if self.ranks.first:
            self.rows = self.folder.rewind(iteration)
        with tracking(names, self.folder.path, self.settings.model_dump(mode="json"), iteration) as self._trackers:
            try:
                yield
            finally:
                self.saver.wait()

    def say(self, event: Event) -> None:
        """Report an event."""
        if self._report and self.ranks.first:
            self._report(event)

    def iteration(self, metrics: Metrics, played: Sequence[Episode]) -> None:
        """Record an iteration; raises the error of a checkpoint that failed in the background."""
        if self.ranks.first:
            number, every = int(metrics["iteration"]), self.settings.training.keep_episodes
            if every and (number == 1 or number % every == 0):
                self.folder.save_episodes(f"train-{number:04d}", played, decode=self._decode)
                self._trackers.episodes([episode.record() for episode in played[:2]], number)
            self.folder.log(metrics)
            self.rows.append(metrics)
            self._trackers.log(metrics, number)
            self.say(IterationFinished(metrics))
            self._say_health()
        self.saver.check()

    def _say_health(self) -> None:
        """Report when the run begins to look as if it cannot learn, and whenever the reason changes."""
        line = health_line(self.rows)
        kind = re.sub(r"\d+", "", line)  # the same words with other numbers are not repeated
        if kind and kind != self._health:
            self.say(HealthChanged(line))
        self._health = kind

    def skipped(self, reason: str) -> None:
        """Report that an optimiser step was skipped."""
        self.say(StepSkipped(reason))

    def save_offenders(self, iteration: int, episodes: Sequence[Episode]) -> Path:
        """Write the episodes that made the loss of ``iteration`` NaN, with their tokens; the file."""
        label = f"nonfinite-{iteration:04d}"
        return (
            self.folder.save_episodes(label, episodes, tokens=True) if self.ranks.first else self.folder.episodes(label)
        )

    def evaluation(self, label: str, result: EvalResult, episodes: Sequence[Episode]) -> None:
        """Record an evaluation."""
        if self.ranks.first:
            self.folder.save_episodes(label, episodes)
            result.save(self.folder.evaluation(label))
        self.say(EvaluationFinished(label, result))

    def has_measured(self, label: str) -> bool:
        """Whether a panel was measured at this stage before, by the run that was continued."""
        return self.ranks.of_first(lambda: self.folder.evaluation(label).exists())

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def require_room_for_run(self, checkpoint_bytes: int) -> None:
        """CheckpointError where the disk does not hold the checkpoints that the run will keep."""
        training = self.settings.training
        self.ranks.of_first(lambda: room.require_room_for_run(self._checkpoints, checkpoint_bytes, training))

    def save(self, iteration: int, checkpoint_bytes: int, take: Callable[[], Snapshot]) -> None:
        """Begin to write the snapshot that ``take`` takes, after the one before is written; all ranks together."""
        self.saver.wait()
        self.ranks.of_first(lambda: room.require_room(self._checkpoints, checkpoint_bytes))
        taken, training = take(), self.settings.training
        spared = keeping.spared(self._checkpoints, iteration, self.rows, training)
        self.saver.save(iteration, taken, training.keep, spared)
