"""How long a run still takes, from its last iterations and evaluations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from gagpo.settings import RunSettings

RECENT = 5


class TimeLeft:
    """Medians of the last five, so that one slow iteration hardly changes the estimate.

    Evaluations take their own time; before the first of this process they are left out.
    """

    def __init__(self, settings: RunSettings):
        self._training = settings.training
        self._evaluation = settings.evaluation
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
        training = self._training
        last = training.iterations
        turns_per_iteration = _median(self._turns)
        if training.max_turns is not None and turns_per_iteration:
            iterations_left = math.ceil((training.max_turns - turns_total) / turns_per_iteration)
            last = min(last, iteration + max(0, iterations_left))
        evaluations = 1 + training.measures_average  # after training
        if self._evaluation.every:
            evaluations += sum(number % self._evaluation.every == 0 for number in range(iteration, last))
        return (last - iteration) * _median(self._iterations) + evaluations * _median(self._evaluations)


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
