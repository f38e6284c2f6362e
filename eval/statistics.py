"""The statistics of success rates: intervals, paired tests, means over seeds, and pass@k.

The unit of sampling is the task: several tries at one task are not independent evidence about new tasks, so intervals
and tests are over tasks, never over tries. Where tasks share something that new tasks will not share, such as the room
of a household, the unit is the cluster of tasks: 134 games in four rooms say little about a fifth room. scipy is
imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gagpo.base.errors import InvalidArgument

Numbers = Sequence[float] | np.ndarray  # one per task
Clusters = Sequence[Hashable] | None
"""The cluster of each task; None where every task is one."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval at ``level``, strictly between 0 and 1; NaN without data."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def record(self) -> dict[str, float]:
        """JSON-ready values."""
        return {"value": self.value, "low": self.low, "high": self.high, "level": self.level}


# One proportion -------------------------------------------------------------------------------------------------------


def wilson(successes: float, trials: float, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927), within [0, 1] and never of width 0.

    trials: may be a non-integer effective sample size; 0 gives the interval [0, 1] around NaN.

    Raises:
        InvalidArgument: unless ``0 <= successes <= trials`` and ``0 < level < 1``.
    """
    if not 0.0 <= successes <= trials:
        raise InvalidArgument(
            f"successes must lie between 0 and the number of trials, got {successes} of {trials}", key="successes"
        )
    z = _two_sided(level)
    if trials == 0:
        return Interval(math.nan, 0.0, 1.0, level)
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # Rounding must not push a bound past the rate.
    low = 0.0 if successes == 0 else max(0.0, min(rate, centre - half))
    high = 1.0 if successes == trials else min(1.0, max(rate, centre + half))
    return Interval(rate, low, high, level)


def clustered_wilson(successes: Numbers, tries: Numbers, level: float = 0.95, clusters: Clusters = None) -> Interval:
    """Wilson's interval for task i solved in ``successes[i]`` of ``tries[i]`` tries.

    Uses the effective number of trials, ``p (1 - p) / var(p)``, with the between-task variance of the ratio estimator
    (Korn & Graubard 1998; Dean & Pagano 2015), clipped to between the number of tasks and the number of tries. One try
    per task gives :func:`wilson` exactly. Successes and tries may be fractions, as those of pass@k are.

    clusters: sampled in place of tasks. They are few, so that their variance is known badly: the effective number is
        lowered by ``(z / t)**2`` with Student's t (Korn & Graubard 1998). One cluster says nothing about others, and
        gives the interval [0, 1].
    """
    solved, tried = _per_task(successes, tries)
    total = float(tried.sum())
    solved, tried = by_cluster(solved, clusters), by_cluster(tried, clusters)
    units = len(tried)
    if units == 0:
        return wilson(0, 0, level)
    rate = float(solved.sum()) / total
    variance = float(((solved - rate * tried) ** 2).sum()) / total**2
    effective = rate * (1 - rate) / variance if variance > 0 and 0 < rate < 1 else float(units)
    if total == units:
        effective = total
    effective = min(max(effective, float(units)), total)
    if clusters is not None:
        effective *= _of_few(units, level)
    interval = wilson(min(rate * effective, effective), effective, level)
    return Interval(rate, min(interval.low, rate), max(interval.high, rate), level)


def by_cluster(values: Numbers, clusters: Clusters) -> np.ndarray:
    """Sums over the tasks of each cluster, float64[clusters], in the order in which they first occur."""
    numbers = np.asarray(values, dtype=float)
    if clusters is None:
        return numbers
    order = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros(len(order))
    np.add.at(sums, [order[cluster] for cluster in clusters], numbers)
    return sums


def _of_few(units: int, level: float) -> float:
    """``(z / t)**2``, by which a variance from so few units lowers the effective number; 0 for a single unit."""
    if units < 2:
        return 0.0
    from scipy.special import stdtrit  # the quantile of Student's t

    return float((_two_sided(level) / stdtrit(units - 1, (1 + level) / 2)) ** 2)


# Two proportions on the same tasks ------------------------------------------------------------------------------------


def paired_difference(
    before: tuple[Numbers, Numbers], after: tuple[Numbers, Numbers], level: float = 0.95, clusters: Clusters = None
) -> Interval:
    """The rise of the success rate from ``before`` to ``after``, each ``(successes, tries)`` over the same tasks.

    Combines two Wilson intervals ("square and add") with the correlation of the per-task rates, which is lowered by a
    continuity correction if positive: Newcombe (1998, method 10), in the form of Zou & Donner (2008). Within [-1, 1]
    and never of width 0.
    """
    solved_a, tried_a, solved_b, tried_b = (by_cluster(counts, clusters) for counts in _paired(before, after))
    if not len(tried_a):
        return Interval(math.nan, -1.0, 1.0, level)
    first = clustered_wilson(before[0], before[1], level, clusters)
    second = clustered_wilson(after[0], after[1], level, clusters)
    correlation = _correlation(solved_a / tried_a, solved_b / tried_b)
    rise = second.value - first.value

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    low = rise - distance(second.value - second.low, first.high - first.value)
    high = rise + distance(second.high - second.value, first.value - first.low)
    return Interval(rise, max(-1.0, low), min(1.0, high), level)


def sign_flip_test(differences: Sequence[int]) -> float:
    """Exact two-sided p under random signs of per-task differences (Fisher 1935).

    With one try per task this is McNemar's exact test (McNemar 1947).

    differences: whole numbers, such as counts of solved tries.
    """
    values = np.array([difference for difference in differences if difference], dtype=int)
    if not len(values):
        return 1.0
    values //= np.gcd.reduce(values)
    sizes = np.abs(values)
    total = int(sizes.sum())
    chance = np.zeros(2 * total + 1)  # probability of every sum from -total to total
    chance[total] = 1.0
    for size in sizes:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2  # never wraps: no sum exceeds the total
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chance[sums >= abs(values.sum())].sum()))


def paired_test(
    before: tuple[Numbers, Numbers], after: tuple[Numbers, Numbers], clusters: Clusters = None
) -> tuple[float, str]:
    """p-value and name of the exact test for ``(successes, tries)`` before and after on the same tasks.

    clusters: whose differences change signs together. With C of them p is at least ``2**(1 - C)``.
    """
    solved_a, tried_a, solved_b, tried_b = _paired(before, after)
    # Over a common denominator rates are whole numbers, which keeps the test exact.
    common = math.lcm(*(int(n) for n in {*tried_a.tolist(), *tried_b.tolist()}))
    scaled = np.rint(solved_b * (common / tried_b)) - np.rint(solved_a * (common / tried_a))
    name = "exact McNemar" if common == 1 and clusters is None else sign_flips_over(clusters)
    return sign_flip_test([int(difference) for difference in by_cluster(scaled, clusters)]), name


def sign_flips_over(clusters: Clusters) -> str:
    """The name of the test that flips signs."""
    return "sign flips over tasks" if clusters is None else f"sign flips over {len(set(clusters))} clusters"


def random_sign_flips(before: np.ndarray, after: np.ndarray, samples: int = 9_999, seed: int = 0) -> float:
    """:func:`sign_flip_test` of any numbers per task: exact for up to 13 tasks that differ, else by random signs.

    samples: number of random signs; the smallest p is ``2 / (samples + 1)``.
    """
    differs = before != after  # equal tasks do not change the sum
    if differs.sum() < 2:  # one task is as likely to differ in either direction
        return 1.0
    from scipy.stats import permutation_test

    pairs = (after[differs], before[differs])
    result = permutation_test(
        pairs,
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=samples,
        batch=max(1, 1_000_000 // len(pairs[0])),
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def paired_mean_difference(before: Numbers, after: Numbers, level: float = 0.95, clusters: Clusters = None) -> Interval:
    """The rise of a mean of any numbers per task, such as mean rewards, over the same tasks.

    A bootstrap percentile interval of the differences, with tasks drawn (Efron 1979). Below about 20 tasks it is
    somewhat too narrow.
    """
    differences = _differences(before, after)
    return cluster_bootstrap(differences, np.ones(len(differences)), level, clusters=clusters)


def paired_mean_test(before: Numbers, after: Numbers, clusters: Clusters = None) -> tuple[float, str]:
    """p-value and name of the test of a mean difference of zero: :func:`random_sign_flips` over tasks or clusters."""
    differences = by_cluster(_differences(before, after), clusters)
    return random_sign_flips(np.zeros(len(differences)), differences), sign_flips_over(clusters)


def _differences(before: Numbers, after: Numbers) -> np.ndarray:
    """Of each task; sums of equal rewards in another order count as equal."""
    first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if first.shape != second.shape or first.ndim != 1:
        raise InvalidArgument(f"both sides need the same tasks, got shapes {first.shape} and {second.shape}")
    differences: np.ndarray = second - first
    differences[np.isclose(first, second, rtol=1e-12, atol=1e-15)] = 0.0
    return differences


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple comparisons, in the given order (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


# Means ----------------------------------------------------------------------------------------------------------------


def cluster_bootstrap(
    numerators: Numbers,
    denominators: Numbers,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
    clusters: Clusters = None,
) -> Interval:
    """Bootstrap percentile interval of ``sum(numerators) / sum(denominators)`` over tasks (Efron 1979).

    Entry i sums over the tries of task i. Equal arguments give equal intervals. Below about 20 clusters it is too
    narrow.

    clusters: drawn in place of tasks.
    """
    top, bottom = by_cluster(numerators, clusters), by_cluster(denominators, clusters)
    if top.shape != bottom.shape or top.ndim != 1:
        raise InvalidArgument(f"one numerator and one denominator per task, got shapes {top.shape} and {bottom.shape}")
    if bottom.sum() <= 0:
        return Interval(math.nan, math.nan, math.nan, level)
    _two_sided(level)
    rng = np.random.default_rng(seed)
    draws = []
    for start in range(0, samples, 200):
        # Draws without a try have no ratio.
        picks = rng.integers(0, len(top), size=(min(200, samples - start), len(top)))
        below = bottom[picks].sum(axis=1)
        draws.append(top[picks].sum(axis=1)[below > 0] / below[below > 0])
    low, high = np.quantile(np.concatenate(draws), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high), level)


def mean_over_seeds(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of one number per seed with Student's t interval, infinite for a single seed."""
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise InvalidArgument("a mean over seeds needs at least one finite number per seed")
    mean = float(data.mean())
    if len(data) == 1:
        return Interval(mean, -math.inf, math.inf, level)
    _two_sided(level)
    from scipy.special import stdtrit  # the quantile of Student's t

    half = float(stdtrit(len(data) - 1, (1 + level) / 2) * data.std(ddof=1)) / math.sqrt(len(data))
    return Interval(mean, mean - half, mean + half, level)


def detectable_difference(
    values: Sequence[float], power: float = 0.8, level: float = 0.95, pairs: int | None = None
) -> float:
    """The smallest true difference between two methods that a paired t test over seeds would find.

    Both methods are taken to vary over seeds as ``values`` do, independently of each other: a difference of two such
    numbers varies ``sqrt(2)`` times as much. At the returned difference the test of that many pairs is significant with
    probability ``power`` (noncentral t, Cohen 1988).

    values: one number per seed, of one method.
    level: 1 minus the test's significance level.
    pairs: number of seeds that both methods have; by default as many as ``values``.

    Returns: the difference, in the unit of ``values``; infinite for a single seed.

    Raises:
        InvalidArgument: ``power`` is not above the significance level and below 1.
    """
    data = np.asarray(values, dtype=float)
    pairs = len(data) if pairs is None else min(pairs, len(data))
    return _standard_errors(pairs, power, level) * math.sqrt(2 / max(pairs, 1)) * _spread(data)


def detectable_rise(
    before: Numbers, after: Numbers, power: float = 0.8, level: float = 0.95, clusters: Clusters = None
) -> float:
    """The smallest true rise that a paired t test over tasks, or over clusters of tasks, would find.

    Like :func:`detectable_difference`, from the spread of these tasks' differences: 0 where no task differs, which says
    nothing of others.

    Returns: the rise of the mean over tasks; infinite for a single task or cluster.
    """
    differences = _differences(before, after)
    of_units = by_cluster(differences, clusters)
    error = math.sqrt(len(of_units)) * _spread(of_units) / len(differences)
    return _standard_errors(len(of_units), power, level) * error


def _spread(values: np.ndarray) -> float:
    """The sample deviation; any positive number for a single value, whose test has infinitely many standard errors."""
    return float(values.std(ddof=1)) if len(values) > 1 else 1.0


def _standard_errors(number: int, power: float, level: float) -> float:
    """The noncentrality at which a share of ``power`` of all t tests of ``number`` values is significant."""
    _two_sided(level)
    if not 1 - level < power < 1:
        raise InvalidArgument(f"power must be above {1 - level:g} and below 1 (got {power:g})", key="power")
    if number < 2:
        return math.inf
    from scipy.special import nctdtrinc, stdtrit

    critical = stdtrit(number - 1, (1 + level) / 2)
    return float(nctdtrinc(number - 1, 1 - power, critical))


def paired_t(differences: Sequence[float]) -> float:
    """Two-sided p of Student's paired t test for a mean difference of zero (Student 1908).

    Without spread p is 1 for differences of zero and NaN otherwise: success rates are counts of few tasks, so equal
    differences occur by chance.

    Raises:
        InvalidArgument: fewer than two differences.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        raise InvalidArgument(f"a t test needs at least two differences, got {len(values)}")
    if values.var(ddof=1) <= 1e-18:
        return math.nan if values.mean() else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(values, 0.0).pvalue)


def area_under_curve(x: Sequence[float], y: Sequence[float]) -> float:
    """Mean height of the piecewise linear curve through (x, y); ``x`` must rise strictly."""
    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if across.shape != up.shape or across.ndim != 1 or not len(across):
        raise InvalidArgument(
            "a curve needs as many x as y, at least one", advice=f"got shapes {across.shape} and {up.shape}"
        )
    if len(across) == 1:
        return float(up[0])
    widths = np.diff(across)
    if not (widths > 0).all():
        raise InvalidArgument("the x of a curve must rise strictly")
    return float(np.trapezoid(up, across) / widths.sum())


# Several tries at a task ----------------------------------------------------------------------------------------------


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """Unbiased pass@k, ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374).

    Raises:
        InvalidArgument: unless ``1 <= k <= tries`` and ``0 <= successes <= tries``.
    """
    if not 1 <= k <= tries:
        raise InvalidArgument(f"k must lie between 1 and the number of tries ({tries}), got {k}", key="k")
    if not 0 <= successes <= tries:
        raise InvalidArgument(f"successes must lie between 0 and {tries}, got {successes}", key="successes")
    return 1.0 - math.comb(tries - successes, k) / math.comb(tries, k)


# Shared parts ---------------------------------------------------------------------------------------------------------


def _two_sided(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise InvalidArgument(f"a confidence level must lie strictly between 0 and 1, got {level}", key="level")
    return NormalDist().inv_cdf((1 + level) / 2)


def _per_task(successes: Numbers, tries: Numbers) -> tuple[np.ndarray, np.ndarray]:
    solved, tried = np.asarray(successes, dtype=float), np.asarray(tries, dtype=float)
    if solved.shape != tried.shape or solved.ndim != 1:
        raise InvalidArgument(
            f"one number of successes and of tries per task, got shapes {solved.shape} and {tried.shape}"
        )
    if bool(((solved < 0) | (solved > tried) | (tried < 1)).any()):
        raise InvalidArgument("every task needs at least one try and between 0 and that many successes")
    return solved, tried


def _paired(
    before: tuple[Numbers, Numbers], after: tuple[Numbers, Numbers]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    sides = (*_per_task(*before), *_per_task(*after))
    if len(sides[0]) != len(sides[2]):
        raise InvalidArgument(f"both sides need the same tasks, got {len(sides[0])} and {len(sides[2])}")
    return sides


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    spread = float(a.std() * b.std())
    shared = float(((a - a.mean()) * (b - b.mean())).mean())
    if shared > 0:  # otherwise equal results on a few tasks would give an interval of width 0
        shared = max(0.0, shared - 1 / (2 * len(a)))
    return shared / spread if spread > 1e-12 else 0.0
