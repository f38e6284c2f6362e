"""Writes metrics, episodes, evaluations and checkpoints to the run folder, and reports events.

Only the first rank writes and reports; all ranks write a checkpoint together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gagpo.data import Episode, TurnCredit
from gagpo.distributed.ranks import Ranks
from gagpo.eval.evaluate import first_failure
from gagpo.eval.health import health_line
from gagpo.eval.results import EvalResult
from gagpo.runs import disk_space, keeping
from gagpo.runs.checkpoint import Entry, Saver
from gagpo.runs.headline import headlines
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.trackers import Trackers, tracking
from gagpo.training.events import EvaluationFinished, Event, IterationFinished, Report, WarningIssued

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        self.folder = folder
        self.settings = settings
        self.ranks = ranks
        self.rows: list[Metrics] = []
        self._checkpoints = folder.path / "checkpoints"
        self._decode = lambda ids: str(tokenizer.decode(ids))
        self.saver = Saver(self._checkpoints, ranks)
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

    def iteration(
        self,
        metrics: Metrics,
        episodes: Sequence[Episode],
        credits: Sequence[Sequence[TurnCredit]] | None,
        seconds_left: float,
    ) -> None:
        """Record an iteration; raises the error of a checkpoint that failed in the background.

        credits: of the turns of each episode; None without an update.
        seconds_left: to the end of the run, estimated.
        """
        if self.ranks.first:
            number = int(metrics["iteration"])
            if self.settings.training.save_episodes_every:
                self.folder.save_episodes(f"train-{number:04d}", episodes, decode=self._decode, credits=credits)
            self.folder.log(metrics)
            self._remove_episodes(number - 1)
            self.rows.append(metrics)
            self._trackers.log(metrics, number)
            self.report(IterationFinished(metrics, seconds_left, headlines(self.rows)))
            self._report_health()
        self.saver.check()

    def _remove_episodes(self, number: int) -> None:
        """Remove the episodes of an iteration that is not kept, once those of the next are written.

        So the newest iteration can always be looked at, at the price of one file.
        """
        every = self.settings.training.save_episodes_every
        if every and number > 1 and number % every:
            self.folder.episodes(f"train-{number:04d}").unlink(missing_ok=True)

    def _report_health(self) -> None:
        """Report when the run looks as if it cannot learn, and when the reason changes."""
        line = health_line(self.rows)
        pattern = re.sub(r"\d+", "", line)  # the same words with other numbers are not repeated
        if pattern and pattern != self._health:
            self.report(WarningIssued(line))
        self._health = pattern

    def save_nonfinite_episodes(self, iteration: int, episodes: Sequence[Episode], turns: Sequence[int]) -> Path:
        """Write the episodes whose turns made a loss of ``iteration`` non-finite, with tokens; returns the file.

        turns: numbers of the turns, counted over ``episodes``; if there are none, all episodes are written.
        """
        label = f"nonfinite-{iteration:04d}"
        if self.ranks.first:
            first_turns = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
            numbers = {int(np.searchsorted(first_turns, turn, side="right")) - 1 for turn in turns}
            offenders = [episodes[number] for number in sorted(numbers)] or episodes
            self.folder.save_episodes(label, offenders, tokens=True, decode=self._decode)
        return self.folder.episodes(label)

    def evaluation(self, label: str, result: EvalResult, episodes: Sequence[Episode]) -> None:
        """Record an evaluation."""
        if self.ranks.first:
            self.folder.save_episodes(label, episodes)
            result.save(self.folder.evaluation(label))
        self.report(EvaluationFinished(label, result, first_failure(episodes)))

    def has_result(self, label: str) -> bool:
        """Whether there is a result of this evaluation already."""
        return self.ranks.of_first(lambda: self.folder.evaluation(label).exists())

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def require_room_for_run(self, entries: Sequence[Entry]) -> None:
        """Raise CheckpointError if the disk has no room for the checkpoints that the run will keep."""
        training = self.settings.training
        self.ranks.of_first(lambda: disk_space.require_room_for_run(self._checkpoints, entries, training))

    def save(self, iteration: int, entries: Sequence[Entry]) -> None:
        """Begin to write a checkpoint when the one before is written; all ranks together.

        The writer's thread goes on while the next iteration runs; its errors are raised by :meth:`iteration`, the next
        :meth:`save` or the end of :meth:`recording`.
        """
        self.saver.wait()
        self.ranks.of_first(lambda: disk_space.require_room(self._checkpoints, entries))
        protected = keeping.protected(self._checkpoints, iteration, self.rows, self.settings.training)
        self.saver.save(iteration, entries, protected=protected)
