"""What a tracker is: four calls, with plain numbers and plain records. Nothing of the trainer is needed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gagpo.base.errors import GagpoError

LONGEST = 2000  # characters of one text of a sample episode

Settings = Mapping[str, object]  # the resolved ones of a run, plain values
Record = Mapping[str, Any]  # an episode, see gagpo.agents.episodes.Episode.record


class Tracker(Protocol):
    """Takes the numbers of one run, in order; made without arguments, started once, closed once."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        """Begin, or go on with the line that an earlier process of this run began.

        run: the run's folder, whose name is the run's. resume_iteration: the last iteration that still holds, 0 for a
        new run; what was logged after it is about to be logged again.
        """

    def log(self, row: Mapping[str, float], step: int) -> None:
        """The finite numbers of iteration ``step``."""

    def episodes(self, sample: Sequence[Record], step: int) -> None:
        """A few whole episodes of iteration ``step``."""

    def close(self) -> None:
        """The run ends, finished or not."""


class Trackers:
    """Several trackers as one. One that breaks in mid-run is named, closed and left out; the training goes on."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self.trackers = dict(trackers)

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        for tracker in self.trackers.values():
            tracker.start(run, settings, resume_iteration)

    def log(self, row: Mapping[str, object], step: int) -> None:
        numbers = plain_numbers(row)
        self._each(lambda tracker: tracker.log(numbers, step))

    def episodes(self, sample: Sequence[Record], step: int) -> None:
        self._each(lambda tracker: tracker.episodes(sample, step))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                call(tracker)
            except GagpoError:
                raise
            except Exception as error:  # a server that is gone must not end a training of days
                del self.trackers[name]
                warnings.warn(f"tracker {name} failed and is left out from here on: {error}", stacklevel=2)


def plain_numbers(row: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers of a row; trackers know no texts, and some refuse NaN.

    >>> plain_numbers({"loss": 0.5, "note": "x", "kl": float("nan"), "ok": True})
    {'loss': 0.5}
    """
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def sample_text(sample: Sequence[Record]) -> str:
    """Episodes as plain text, indented so that trackers which render Markdown show it as it is."""
    lines: list[str] = []
    for episode in sample:  # a headline, then what was said turn after turn
        verdict = "success" if episode["success"] else "no success"
        lines += [f"{verdict}, {len(episode['turns'])} turns: {episode['task']}", ""]
        for number, turn in enumerate(episode["turns"], 1):
            for name in ("observation", "response"):  # of a model: cut, and shown as plain ASCII
                shown = str(turn[name])[:LONGEST].encode("ascii", "backslashreplace").decode()
                lines += [f"    {number} {name}: {line}" for line in shown.splitlines() or [""]]
        lines.append("")
    return "\n".join(lines)
