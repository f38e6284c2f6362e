"""How long a run still takes, from its last iterations and evaluations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from gagpo.settings import RunSettings

RECENT = 5


class TimeLeft:
    """Medians of the last five, so that one slow iteration hardly changes the estimate.

    Evaluations take their own time; before the first of this process they are left out.
    """

    def __init__(self, settings: RunSettings):
        self._training, self._evaluation = settings.training, settings.evaluation
        self._iterations: deque[float] = deque(maxlen=RECENT)
        self._turns: deque[int] = deque(maxlen=RECENT)
        self._evaluations: deque[float] = deque(maxlen=RECENT)

    def iteration(self, seconds: float, turns: int) -> None:
        """Count an iteration. turns: environment turns in it."""
        self._iterations.append(seconds)
        self._turns.append(turns)

    def evaluation(self, seconds: float) -> None:
        """Count an evaluation of all panels."""
        self._evaluations.append(seconds)

    def seconds(self, iteration: int, turns_total: int) -> float:
        """Seconds from the end of ``iteration`` to the end of the run; 0 before any was counted."""
        training, every = self._training, self._evaluation.every
        last = training.iterations
        if training.max_turns is not None and (usual := _middle(self._turns)):
            last = min(last, iteration + max(0, math.ceil((training.max_turns - turns_total) / usual)))
        evaluations = sum(number % every == 0 for number in range(iteration, last)) if every else 0
        evaluations += 1 + training.measures_average
        return (last - iteration) * _middle(self._iterations) + evaluations * _middle(self._evaluations)


def _middle(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else 0.0
