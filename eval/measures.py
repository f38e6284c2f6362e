"""What is measured of the tries of each task: success, mean reward, pass@k, majority@k, distinct solutions@k.

A measure gives one value per task. An estimate with its interval, and a paired test between two results, follow from
these. Both are over tasks, or over clusters of tasks, never over tries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gagpo.eval.at_k import distinct_at_k, majority_at_k
from gagpo.eval.statistics import (
    Clusters,
    Interval,
    by_cluster,
    cluster_bootstrap,
    clustered_wilson,
    detectable_rise,
    paired_difference,
    paired_mean_difference,
    paired_mean_test,
    paired_test,
    pass_at_k,
    random_sign_flips,
    sign_flip_test,
    sign_flips_over,
)
from gagpo.eval.tries import TaskResult
from gagpo.eval.units import COUNT, PERCENT, REWARDS, MeasureUnit
from gagpo.runs.headline import REWARD_MEAN, SUCCESS_RATE, Headline

MOST_VOTES = 256
"""majority@k is not computed with more episodes per task: its time rises with their third power."""

Tasks = Sequence[TaskResult]


@dataclass(frozen=True)
class Difference:
    """One result minus another on the same tasks.

    rise: of the estimate, with its 95 % interval, paired by task.
    p: two-sided, of the paired test named ``test``.
    gained, lost: number of tasks with a higher or a lower value.
    detectable: the smallest rise that these tasks would show, see :func:`gagpo.eval.statistics.detectable_rise`.
    """

    rise: Interval
    p: float
    test: str
    gained: int
    lost: int
    detectable: float


@dataclass(frozen=True)
class Measure:
    """A number of the tries of a task.

    name: such as ``success`` or ``pass@k``.
    unit: how it is written. In per cent it is a proportion, whose interval is Wilson's; others are bootstrapped.
    of_task: for a task and ``k``, a sum over its tries and the number of summands; the value is their ratio.
    k: number of episodes that a value is about. The value of 1 episode is the success rate, except for rewards.
    metric: its name among the metrics of training; empty if it is not one.
    stored: whether tasks have what it needs; files of older versions may lack it.
    """

    name: str
    unit: MeasureUnit
    of_task: Callable[[TaskResult, int], tuple[float, float]]
    k: int = 1
    metric: str = ""
    stored: Callable[[Tasks], bool] = lambda tasks: True

    def at(self, k: int) -> Measure:
        """The same of k episodes."""
        return replace(self, k=k)

    @property
    def title(self) -> str:
        """The name as the header of a column: ``pass@k %``."""
        return self.name + self.unit.suffix

    def values(self, tasks: Tasks) -> np.ndarray:
        """The value of each task, float64[tasks]."""
        sums, counts = self._sums(tasks)
        ratios: np.ndarray = sums / counts
        return ratios

    def estimate(self, tasks: Tasks, clusters: Clusters = None) -> Interval:
        """The mean over tasks with its 95 % interval. Tasks of more tries count more in success and mean reward."""
        if self.unit is PERCENT:
            return clustered_wilson(*self._trials(tasks), clusters=clusters)
        return cluster_bootstrap(*self._sums(tasks), clusters=clusters)

    def difference(self, before: Tasks, after: Tasks, clusters: Clusters = None) -> Difference:
        """``after`` minus ``before``: the same tasks in the same order, whose numbers of tries may differ."""
        first, second = self.values(before), self.values(after)
        if self.unit is PERCENT:
            rise = paired_difference(self._trials(before), self._trials(after), clusters=clusters)
        else:
            rise = paired_mean_difference(first, second, clusters=clusters)
        test = self._test(before, after, clusters)
        return Difference(
            rise,
            *test,
            gained=int((second > first).sum()),
            lost=int((second < first).sum()),
            detectable=detectable_rise(first, second, clusters=clusters),
        )

    def _sums(self, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
        sums, counts = np.array([self.of_task(task, self.k) for task in tasks], dtype=float).reshape(-1, 2).T
        return sums, counts

    def _trials(self, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
        """A proportion as successes in n / k trials per task, its disjoint groups of k among n episodes.

        At k = 1 these are the successes and episodes themselves, and at k = n one trial per task.
        """
        sums, counts = self._sums(tasks)
        groups = np.array([len(task.tries) / self.k for task in tasks])
        return np.minimum(sums, counts) * (groups / counts), groups

    def _test(self, before: Tasks, after: Tasks, clusters: Clusters) -> tuple[float, str]:
        """p-value and name of the paired test: exact where values are whole numbers, as at k = 1 and k = n."""
        if self.unit is REWARDS:
            return paired_mean_test(self.values(before), self.values(after), clusters)
        if self.k == 1:
            return paired_test(SUCCESS._trials(before), SUCCESS._trials(after), clusters)
        sides = np.stack([by_cluster(self.values(tasks), clusters) for tasks in (before, after)])
        name = sign_flips_over(clusters)
        if np.array_equal(sides, np.rint(sides)):
            name = "exact McNemar" if clusters is None and sides.max(initial=0) <= 1 else name
            return sign_flip_test((sides[1] - sides[0]).astype(int).tolist()), name
        return random_sign_flips(*sides), name


def _votes(task: TaskResult, k: int) -> tuple[float, float]:
    (score,) = majority_at_k([t.answer for t in task.tries], [t.success for t in task.tries], [k])
    return score, 1


def _distinct(task: TaskResult, k: int) -> tuple[float, float]:
    (number,) = distinct_at_k([t.solution or "" for t in task.tries if t.success], len(task.tries), [k])
    return number, 1


def _has_answers(tasks: Tasks) -> bool:
    """Whether votes are known; without any success they do not matter. Not of so many that counting takes minutes."""
    if any(len(task.tries) > MOST_VOTES for task in tasks):
        return False
    return has_votes(tasks) or not any(task.successes for task in tasks)


def has_votes(tasks: Tasks) -> bool:
    """Whether any try has an answer."""
    return any(attempt.answer is not None for task in tasks for attempt in task.tries)


def _has_solutions(tasks: Tasks) -> bool:
    return all(attempt.solution is not None for task in tasks for attempt in task.tries if attempt.success)


SUCCESS = Measure("success", PERCENT, lambda task, _: (task.successes, len(task.tries)), metric=SUCCESS_RATE)
REWARD = Measure("mean reward", REWARDS, lambda task, _: (task.reward_sum, len(task.tries)), metric=REWARD_MEAN)
PASS = Measure("pass@k", PERCENT, lambda task, k: (pass_at_k(len(task.tries), task.successes, k), 1))
MAJORITY = Measure("majority@k", PERCENT, _votes, stored=_has_answers)
SOLUTIONS = Measure("solutions@k", COUNT, _distinct, stored=_has_solutions)

FIRST = (REWARD, SUCCESS)
"""The measures that may come first, in the order in which they are shown."""
OF_K = (PASS, MAJORITY, SOLUTIONS)
"""The measures of k episodes."""


def measures_in(headline: Headline) -> list[Measure]:
    """The measures whose metrics come first."""
    return [measure for measure in FIRST if measure.metric in headline]
