"""Measures of k episodes per task: pass@k, majority@k, and the number of distinct correct solutions.

Each is the mean over all subsets of k of a task's n episodes, so any k up to n is estimated without bias. Intervals
and tests are over tasks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gagpo.base.errors import InvalidArgument
from gagpo.eval.results import EvalResult, TaskResult, joint_headline, powers_of_two
from gagpo.eval.statistics import (
    Clusters,
    Interval,
    by_cluster,
    cluster_bootstrap,
    clustered_wilson,
    paired_difference,
    paired_test,
    pass_at_k,
    random_sign_flips,
    sign_flip_test,
    sign_flips_over,
)

MOST_VOTES = 256
"""majority@k is not computed with more episodes per task: its time rises with their third power."""


@dataclass(frozen=True)
class Measure:
    """A number of k episodes of a task.

    name: such as ``pass@k``.
    share: between 0 and 1, and shown in per cent; otherwise a count.
    of_task: its estimates for each k, from all episodes of a task.
    stored: whether a result has what the measure needs; files of older versions may lack it.
    """

    name: str
    share: bool
    of_task: Callable[[TaskResult, Sequence[int]], list[float]]
    stored: Callable[[EvalResult], bool] = lambda result: True

    def values(self, result: EvalResult, ks: Sequence[int]) -> dict[int, np.ndarray]:
        """By k: the estimate of each task, float64[tasks], in the order of ``result.tasks``."""
        table = np.array([self.of_task(task, ks) for task in result.tasks])
        return {k: table[:, column] for column, k in enumerate(ks)}

    def intervals(self, result: EvalResult, ks: Sequence[int]) -> dict[int, Interval]:
        """By k: the mean over tasks with its 95 % interval over tasks."""
        groups = {k: result.task_set.tries / k for k in ks}  # disjoint groups of k among the n episodes
        return {k: self._interval(values, groups[k], result.units) for k, values in self.values(result, ks).items()}

    def differences(self, first: EvalResult, other: EvalResult, ks: Sequence[int]) -> dict[int, KDifference]:
        """By k: ``other`` minus ``first`` on the same tasks; their numbers of episodes may differ."""
        before, after = self.values(first, ks), self.values(other, ks)
        return {
            k: KDifference(self._rise(k, (first, before[k]), (other, after[k])), *_test(k, first, other, before, after))
            for k in ks
        }

    def _interval(self, values: np.ndarray, groups: float, clusters: Clusters) -> Interval:
        """The interval of the mean of ``values``."""
        if not self.share:
            return cluster_bootstrap(values, np.ones(len(values)), clusters=clusters)
        return clustered_wilson(*_counted(values, groups), clusters=clusters)

    def _rise(self, k: int, before: tuple[EvalResult, np.ndarray], after: tuple[EvalResult, np.ndarray]) -> Interval:
        clusters = before[0].units
        if not self.share:
            return cluster_bootstrap(after[1] - before[1], np.ones(len(after[1])), clusters=clusters)
        first, other = before[0].task_set, after[0].task_set
        counts = _counted(before[1], first.tries / k), _counted(after[1], other.tries / k)
        return paired_difference(*counts, clusters=clusters)


@dataclass(frozen=True)
class KDifference:
    """A difference between two results at one k.

    rise: mean difference with its 95 % interval, paired by task.
    p: two-sided, of the paired test named ``test``.
    """

    rise: Interval
    p: float
    test: str


def _counted(values: np.ndarray, groups: float) -> tuple[np.ndarray, np.ndarray]:
    """The shares as successes in ``groups`` trials per task.

    At k = 1 these are the successes and episodes themselves, and at k = n one trial per task.
    """
    return np.minimum(values, 1.0) * groups, np.full(len(values), groups)


def _test(
    k: int, first: EvalResult, other: EvalResult, before: Mapping[int, np.ndarray], after: Mapping[int, np.ndarray]
) -> tuple[float, str]:
    """p-value and name of the paired test: exact where the estimates are whole numbers, as at k = 1 and k = n."""
    if k == 1:
        return paired_test(first.counts, other.counts, first.units)
    sides = np.stack([by_cluster(before[k], first.units), by_cluster(after[k], first.units)])
    name = sign_flips_over(first.units)
    if np.array_equal(sides, np.rint(sides)):
        name = "exact McNemar" if first.units is None and sides.max(initial=0) <= 1 else name
        return sign_flip_test((sides[1] - sides[0]).astype(int).tolist()), name
    return random_sign_flips(*sides), name


# The estimates for one task -------------------------------------------------------------------------------------------


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], ks: Sequence[int]) -> list[float]:
    """Probability that a majority vote of k of the episodes is right, for each k.

    answers: the answer of each episode, None if it has none. Such an episode does not vote.
    correct: whether each episode succeeded.

    A vote counts the share of correct episodes among those with a winning answer: 1 or 0 for one winner, and for a tie
    the share of right answers among the winners. Without any vote, it is the share of correct episodes drawn. So
    majority@1 equals pass@1.

    Raises:
        InvalidArgument: a k is not between 1 and the number of episodes.
    """
    _require_within(ks, len(answers))
    sizes = Counter(answers)
    right = Counter(answer for answer, success in zip(answers, correct, strict=True) if success)
    silent = (sizes.pop(None, 0), right[None])
    votes = tuple(sorted((size, right[answer]) for answer, size in sizes.items()))
    score_K = _majority(votes, silent, max(ks))
    return [float(score_K[k]) for k in ks]


@lru_cache(maxsize=4096)  # most tasks have one of a few counts, such as all episodes right
def _majority(votes: tuple[tuple[int, int], ...], silent: tuple[int, int], most: int) -> np.ndarray:
    """The expected score of a vote of k episodes for k = 0 to ``most``, float64[K].

    votes: size and number of correct episodes of each answer.
    silent: the same of the episodes without an answer.

    Sums over the winners' number of votes. Answers are added one by one to a population, with the probability that a
    draw of k leaves t of them at that number and none above it.
    """
    total = silent[0] + sum(size for size, _ in votes)
    unvoted_K = np.diagonal(_draws(silent[0], total - silent[0], np.arange(most + 1), most))
    score_K = unvoted_K * silent[1] / max(silent[0], 1)
    for top in range(1, min(most, max((size for size, _ in votes), default=0)) + 1):
        able = [vote for vote in votes if vote[0] >= top]
        population = total - sum(size for size, _ in able)  # these cannot exceed or tie the winners
        chance_TK = np.zeros((min(len(able), most // top) + 1, most + 1))
        chance_TK[0, : population + 1] = 1.0
        shares_TK = np.zeros_like(chance_TK)  # probability times the sum of the winners' shares of correct episodes
        for size, right in able:
            weight_JK = _draws(size, population, np.arange(top + 1), most)
            wins_TK = _combined(chance_TK, weight_JK, top)[:-1]
            gains_TK = _combined(shares_TK, weight_JK, top)[:-1] + wins_TK * right / size
            chance_TK = _combined(chance_TK, weight_JK, 0, top)
            shares_TK = _combined(shares_TK, weight_JK, 0, top)
            chance_TK[1:] += wins_TK
            shares_TK[1:] += gains_TK
            population += size
        score_K = score_K + (shares_TK[1:] / np.arange(1, len(shares_TK))[:, None]).sum(axis=0)
    return score_K


def _combined(table_TK: np.ndarray, weight_JK: np.ndarray, start: int, stop: int | None = None) -> np.ndarray:
    """Draws of k as j of a new answer, with their probability, and k - j of the earlier population, float64[T, K].

    Sums over j from ``start`` to below ``stop``, by default ``start`` alone.
    """
    stop = start + 1 if stop is None else stop
    padded_TK = np.pad(table_TK, ((0, 0), (stop - 1, 0)))
    earlier_TKJ = sliding_window_view(padded_TK, stop, axis=1)[..., ::-1]  # at j: the column k - j
    combined_TK: np.ndarray = np.einsum("tkj,jk->tk", earlier_TKJ[..., start:], weight_JK[start:stop])
    return combined_TK


def _draws(size: int, remainder: int, j: np.ndarray, most: int) -> np.ndarray:
    """Probability that a draw of k = 0 to ``most`` has j of ``size`` items and k - j of ``remainder``, float64[J, K].

    In logarithms, as binomial coefficients of a thousand episodes exceed a float.
    """
    from scipy.special import gammaln

    log_factorial = gammaln(np.arange(1, size + remainder + 2))

    def log_binomial(n: int, k: np.ndarray) -> np.ndarray:
        within = np.clip(k, 0, n)
        return np.where(k == within, log_factorial[n] - log_factorial[within] - log_factorial[n - within], -np.inf)

    k_K = np.minimum(np.arange(most + 1), size + remainder)
    j_J1 = np.asarray(j)[:, None]
    chance_JK: np.ndarray = np.exp(
        log_binomial(size, j_J1) + log_binomial(remainder, k_K - j_J1) - log_binomial(size + remainder, k_K)
    )
    chance_JK[:, size + remainder + 1 :] = 0.0
    return chance_JK


def distinct_at_k(solutions: Sequence[str], episodes: int, ks: Sequence[int]) -> list[float]:
    """Expected number of distinct solutions in k of the episodes, for each k (Hurlbert 1971, rarefaction).

    solutions: of the successful episodes.
    episodes: the number of all episodes.

    Raises:
        InvalidArgument: a k is not between 1 and the number of episodes.
    """
    _require_within(ks, episodes)
    sizes = Counter(solutions).values()
    return [float(sum(pass_at_k(episodes, size, k) for size in sizes)) for k in ks]


def _require_within(ks: Sequence[int], episodes: int) -> None:
    for k in ks:
        if not 1 <= k <= episodes:
            raise InvalidArgument(f"k must lie between 1 and the number of episodes ({episodes}), got {k}", key="k")


def _pass(task: TaskResult, ks: Sequence[int]) -> list[float]:
    return [pass_at_k(len(task.tries), task.successes, k) for k in ks]


def _majority_of(task: TaskResult, ks: Sequence[int]) -> list[float]:
    return majority_at_k([t.answer for t in task.tries], [t.success for t in task.tries], ks)


def _distinct_of(task: TaskResult, ks: Sequence[int]) -> list[float]:
    return distinct_at_k([t.solution or "" for t in task.tries if t.success], len(task.tries), ks)


def _has_answers(result: EvalResult) -> bool:
    """Whether votes are known; without any success they do not matter. Not of so many that counting takes minutes."""
    if result.task_set.tries > MOST_VOTES:
        return False
    return not result.successes or any(attempt.answer is not None for attempt in result.every_try)


def _has_solutions(result: EvalResult) -> bool:
    return all(attempt.solution is not None for attempt in result.every_try if attempt.success)


PASS = Measure("pass@k", True, _pass)
MAJORITY = Measure("majority@k", True, _majority_of, _has_answers)
SOLUTIONS = Measure("solutions@k", False, _distinct_of, _has_solutions)
MEASURES = (PASS, MAJORITY, SOLUTIONS)


# Which of them are shown ----------------------------------------------------------------------------------------------


def measures_of(results: Collection[EvalResult]) -> list[Measure]:
    """The measures that all results have. majority@k needs an answer in at least one of them."""
    voted = any(attempt.answer is not None for result in results for attempt in result.every_try)
    return [
        measure
        for measure in MEASURES
        if all(measure.stored(result) for result in results) and (voted or measure is not MAJORITY)
    ]


def shown_ks(results: Mapping[str, EvalResult], pass_at: Sequence[int] | None = None) -> list[int]:
    """The k to show: ``pass_at``, by default 1, 2, 4, ... and the smallest number of episodes per task.

    Empty by default if a result has one episode per task, or none reports success.

    Raises:
        InvalidArgument: a k of ``pass_at`` exceeds the episodes per task of a result.
    """
    if pass_at is None:
        if not joint_headline(results.values()).success:
            return []
        fewest = min(result.task_set.tries for result in results.values())
        return powers_of_two(fewest) if fewest > 1 else []
    for label, result in results.items():
        require_episodes(label, result.task_set.tries, pass_at)
    return list(pass_at)


def require_episodes(label: str, tries: int, pass_at: Sequence[int]) -> None:
    """Raise :class:`InvalidArgument` if a k exceeds the episodes per task."""
    if pass_at and max(pass_at) > tries:
        tries_in_words = "1 episode" if tries == 1 else f"{tries} episodes"
        advice = f"evaluate it with --episodes-per-task {max(pass_at)}, or choose at most {tries}"
        raise InvalidArgument(
            f"--pass-at {max(pass_at)}: {label} has {tries_in_words} per task", key="--pass-at", advice=advice
        )


def read_ks(text: str | None) -> list[int] | None:
    """The numbers of ``--pass-at``, sorted.

    >>> read_ks("8,1,64")
    [1, 8, 64]

    Raises:
        InvalidArgument: the text is not a list of whole numbers of at least 1.
    """
    if text is None:
        return None
    texts = [number.strip() for number in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,5}", number) for number in texts):
        raise InvalidArgument(
            f"--pass-at must be whole numbers of at least 1 such as 1,8,64 (got {text!r:.40})", key="--pass-at"
        )
    return sorted({int(number) for number in texts})


def at_k_record(result: EvalResult, ks: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    """The intervals of a result by measure and k, as JSON-ready values."""
    return {
        measure.name: {str(k): interval.record() for k, interval in measure.intervals(result, ks).items()}
        for measure in (measures_of([result]) if ks else [])
    }


def rates_at_k(
    label: str, result: EvalResult, pass_at: Sequence[int] | None = None
) -> dict[str, dict[str, float]] | None:
    """The means over tasks by measure and k; None with one episode per task, unless ``pass_at`` names a k.

    Raises:
        InvalidArgument: a k of ``pass_at`` exceeds the episodes per task.
    """
    ks = shown_ks({label: result}, pass_at)
    rates = {
        measure.name: {str(k): float(values.mean()) for k, values in measure.values(result, ks).items()}
        for measure in (measures_of([result]) if ks else [])
    }
    return rates or None
