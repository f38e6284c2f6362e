"""The interface of a tracker: three methods that receive plain numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gagpo.base.errors import GagpoError

Settings = Mapping[str, object]  # resolved settings of a run


class Tracker(Protocol):
    """Receives the metrics of one run, in order. Constructed without arguments, started once, closed once."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        """Start, or continue what an earlier process of this run logged.

        run: the run's folder; its name is the name of the run.
        resume_iteration: the last iteration that is kept, 0 for a new run; later ones will be logged again.
        """

    def log(self, row: Mapping[str, float], step: int) -> None:
        """The finite numbers of iteration ``step``."""

    def close(self) -> None:
        """Called at the end of the run, finished or not."""


class Trackers:
    """Several trackers as one. One that fails during the run is dropped with a warning; training continues."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self.trackers = dict(trackers)

    def log(self, row: Mapping[str, object], step: int) -> None:
        numbers = plain_numbers(row)
        self._each(lambda tracker: tracker.log(numbers, step))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                call(tracker)
            except GagpoError:
                raise
            except Exception as error:  # a lost server must not end a long training
                del self.trackers[name]
                warnings.warn(f"tracker {name} failed and will not be used again: {error}", stacklevel=2)


def plain_numbers(row: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers of a row. Trackers accept no texts, and some reject NaN.

    >>> plain_numbers({"loss": 0.5, "note": "x", "kl": float("nan"), "ok": True})
    {'loss': 0.5}
    """
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
