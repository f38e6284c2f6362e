"""The statistics of success rates: intervals, paired tests, seeds, pass@k and majority@k.

Pure functions of numbers, numpy only. A task is the unit of sampling everywhere: several tries at one task are not
independent evidence about new tasks, so intervals and tests are taken over tasks, never over tries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gagpo.base.errors import InvalidArgument


@dataclass(frozen=True)
class Interval:
    """An estimate with the interval that covers the true value with probability ``level``."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def record(self) -> dict[str, float]:
        """JSON-ready values."""
        return {"value": self.value, "low": self.low, "high": self.high, "level": self.level}


# Quantiles ------------------------------------------------------------------------------------------------------------


def normal_quantile(probability: float) -> float:
    """The standard normal value that is not exceeded with ``probability`` (strictly between 0 and 1)."""
    if not 0.0 < probability < 1.0:
        raise InvalidArgument(f"a probability must lie strictly between 0 and 1, got {probability}")
    return NormalDist().inv_cdf(probability)


def student_cdf(value: float, degrees: float) -> float:
    """P(T <= value) of Student's t with ``degrees`` > 0 degrees of freedom (Abramowitz & Stegun 26.7.1)."""
    if degrees <= 0:
        raise InvalidArgument(f"degrees of freedom must be positive, got {degrees}")
    square = value * value
    if square < degrees:  # near 0 the tail is 1/2 but for what rounding loses; the part beside it is exact
        beside = 0.5 * _incomplete_beta(0.5, degrees / 2.0, square / (degrees + square))
        return 0.5 + beside if value > 0 else 0.5 - beside
    tail = 0.5 * _incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + square))
    return 1.0 - tail if value > 0 else tail


def student_quantile(probability: float, degrees: float) -> float:
    """The inverse of :func:`student_cdf`, by bisection to the last bits of a float."""
    if not 0.0 < probability < 1.0:
        raise InvalidArgument(f"a probability must lie strictly between 0 and 1, got {probability}")
    if probability < 0.5:
        return -student_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        low, high = high, high * 2.0
    for _ in range(200):
        # Half of the interval each time, until no float lies between its ends.
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz & Stegun 26.5.8)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast only on this side
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # Evaluated from the front with the modified Lentz recurrence, which needs no guess at the number of terms.
    tiny = 1e-300
    numerator, denominator, fraction = 1.0, 0.0, 1.0
    for step in range(1000):
        # The first term is 1, then even and odd ones have their own forms.
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        denominator = 1.0 / (1.0 + term * denominator or tiny)
        numerator = 1.0 + term / numerator or tiny
        fraction *= numerator * denominator
        if abs(numerator * denominator - 1.0) < 1e-16:
            break
    return math.exp(logarithm) * (fraction - 1.0) / a


# One proportion -------------------------------------------------------------------------------------------------------


def wilson(successes: float, trials: float, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927), always within [0, 1] and never of width 0.

    ``trials`` may be a non-integer effective sample size. No trials at all give the interval [0, 1] around NaN.
    Raises ValueError unless ``0 <= successes <= trials`` and ``0 < level < 1``.
    """
    if not 0.0 <= successes <= trials:
        raise InvalidArgument(f"successes must lie between 0 and the number of trials, got {successes} of {trials}")
    z = _two_sided(level)
    if trials == 0:
        return Interval(math.nan, 0.0, 1.0, level)
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # At the ends the bound equals the rate exactly; rounding must not push it past.
    low = 0.0 if successes == 0 else max(0.0, min(rate, centre - half))
    high = 1.0 if successes == trials else min(1.0, max(rate, centre + half))
    return Interval(rate, low, high, level)


def clustered_wilson(successes: Sequence[int], tries: Sequence[int], level: float = 0.95) -> Interval:
    """Wilson's interval when task i was tried ``tries[i]`` times and solved ``successes[i]`` times.

    The number of trials is replaced by the effective one, ``p (1 - p) / var(p)``, with the between-task variance of the
    ratio estimator (Korn & Graubard 1998; Dean & Pagano 2015), kept between the number of tasks and the number of
    tries. One try per task gives :func:`wilson` exactly.
    """
    solved, tried = _per_task(successes, tries)
    tasks, total = len(tried), float(tried.sum())
    if tasks == 0:
        return wilson(0, 0, level)
    rate = float(solved.sum()) / total
    variance = float(((solved - rate * tried) ** 2).sum()) / total**2
    effective = rate * (1 - rate) / variance if variance > 0 and 0 < rate < 1 else float(tasks)
    if total == tasks:
        effective = total
    effective = min(max(effective, float(tasks)), total)
    interval = wilson(min(rate * effective, effective), effective, level)
    return Interval(rate, min(interval.low, rate), max(interval.high, rate), level)


# Two proportions on the same tasks ------------------------------------------------------------------------------------


def paired_difference(
    before: tuple[Sequence[int], Sequence[int]], after: tuple[Sequence[int], Sequence[int]], level: float = 0.95
) -> Interval:
    """The rise of the success rate from ``before`` to ``after``, each ``(successes, tries)`` over the same tasks.

    The two Wilson intervals are combined by their distances to the rates ("square and add") less the correlation of
    the per-task rates, which is lowered by a continuity correction when positive: Newcombe (1998, method 10), in the
    form of Zou & Donner (2008). Within [-1, 1], and never of width 0.
    """
    (solved_a, tried_a), (solved_b, tried_b) = _per_task(*before), _per_task(*after)
    if len(tried_a) != len(tried_b):
        raise InvalidArgument(
            f"a paired difference needs the same tasks on both sides, got {len(tried_a)}, {len(tried_b)}"
        )
    if not len(tried_a):
        return Interval(math.nan, -1.0, 1.0, level)
    first = clustered_wilson(before[0], before[1], level)
    second = clustered_wilson(after[0], after[1], level)
    correlation = _correlation(solved_a / tried_a, solved_b / tried_b)
    rise = second.value - first.value

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    low = rise - distance(second.value - second.low, first.high - first.value)
    high = rise + distance(second.high - second.value, first.value - first.low)
    return Interval(rise, max(-1.0, low), min(1.0, high), level)


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided McNemar test: ``lost`` tasks only the first solved, ``gained`` only the second (McNemar 1947).

    Twice the smaller binomial tail of ``lost + gained`` fair coin tosses, at most 1.
    """
    if lost < 0 or gained < 0:
        raise InvalidArgument(f"numbers of tasks cannot be negative, got {lost} and {gained}")
    tosses = lost + gained
    tail = sum(math.comb(tosses, k) for k in range(min(lost, gained) + 1))
    return min(1.0, float(2 * tail / 2**tosses))


def sign_flip_test(differences: Iterable[float], samples: int = 20_000, seed: int = 0) -> float:
    """Two-sided p-value that per-task differences have no direction: the sign of each is a fair coin (Fisher 1935).

    Whole-numbered differences (counts of solved tries) are tested exactly, by convolving the distribution of the sum;
    with one try per task that is McNemar's exact test. Others by ``samples`` random flips from a private generator,
    p = (1 + hits) / (1 + samples) (Phipson & Smyth 2010).
    """
    values = np.asarray(list(differences), dtype=float)
    if not np.isfinite(values).all():
        raise InvalidArgument("differences must be finite numbers")
    sizes, observed = np.abs(values[values != 0]), abs(float(values.sum()))
    if not len(sizes):
        return 1.0
    whole = bool((sizes == np.round(sizes)).all())
    if whole and float(sizes.sum()) * len(sizes) <= 2e8:  # a second or two of convolution at most
        return _exact_sign_flip(sizes.astype(int), round(observed))
    rng = np.random.default_rng(seed)
    hits = 0
    tolerance = 1e-12 * float(sizes.sum())
    for start in range(0, samples, 1000):
        # A thousand at a time, which bounds the memory.
        signs = rng.integers(0, 2, size=(min(1000, samples - start), len(sizes))) * 2 - 1
        hits += int((np.abs(signs @ sizes) >= observed - tolerance).sum())
    return (1 + hits) / (1 + samples)


def paired_test(
    before: tuple[Sequence[int], Sequence[int]], after: tuple[Sequence[int], Sequence[int]]
) -> tuple[float, str]:
    """p-value and name of the exact test for ``(successes, tries)`` before and after on the same tasks."""
    (solved_a, tried_a), (solved_b, tried_b) = _per_task(*before), _per_task(*after)
    if len(tried_a) != len(tried_b):
        raise InvalidArgument(
            f"a paired test needs the same tasks on both sides, got {len(tried_a)} and {len(tried_b)}"
        )
    if bool((tried_a == 1).all()) and bool((tried_b == 1).all()):
        return mcnemar(int((solved_a > solved_b).sum()), int((solved_b > solved_a).sum())), "exact McNemar"
    # Rates over a common denominator are whole numbers, which keeps the test exact.
    common = math.lcm(*(int(n) for n in {*tried_a.tolist(), *tried_b.tolist()}))
    scaled = np.rint(solved_b * (common / tried_b)) - np.rint(solved_a * (common / tried_a))
    return sign_flip_test(scaled), "sign flips over tasks"


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for all of them being looked at, in the given order (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        # The smallest is multiplied by all, the next by one less; none falls below the one before it.
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


# Means ----------------------------------------------------------------------------------------------------------------


def cluster_bootstrap(
    numerators: Sequence[float],
    denominators: Sequence[float] | None = None,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of ``sum(numerators) / sum(denominators)`` under resampling of whole tasks (Efron 1979).

    Entry i sums over the tries of task i (say, rewards and episodes, or invalid and all turns); without denominators
    each counts 1, which gives the mean. The generator is private: equal arguments give equal intervals.
    """
    top = np.asarray(numerators, dtype=float)
    bottom = np.ones_like(top) if denominators is None else np.asarray(denominators, dtype=float)
    if top.shape != bottom.shape or top.ndim != 1:
        raise InvalidArgument(f"one numerator and one denominator per task, got shapes {top.shape} and {bottom.shape}")
    if bottom.sum() <= 0:
        return Interval(math.nan, math.nan, math.nan, level)
    _two_sided(level)
    rng = np.random.default_rng(seed)
    draws = []
    for start in range(0, samples, 200):
        # Whole tasks are drawn with replacement; draws without any try have no ratio.
        picks = rng.integers(0, len(top), size=(min(200, samples - start), len(top)))
        below = bottom[picks].sum(axis=1)
        draws.append(top[picks].sum(axis=1)[below > 0] / below[below > 0])
    low, high = np.quantile(np.concatenate(draws), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high), level)


def mean_over_seeds(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of one number per seed with Student's t interval; a single seed has an infinite one."""
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise InvalidArgument("a mean over seeds needs at least one finite number per seed")
    mean = float(data.mean())
    if len(data) == 1:
        return Interval(mean, -math.inf, math.inf, level)
    _two_sided(level)
    half = student_quantile((1 + level) / 2, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return Interval(mean, mean - half, mean + half, level)


def area_under_curve(x: Sequence[float], y: Sequence[float]) -> float:
    """Area under the straight lines through (x, y), divided by the width: the curve's mean height.

    ``x`` must rise strictly; a single point has its own height.
    """
    across, up = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if across.shape != up.shape or across.ndim != 1 or not len(across):
        raise InvalidArgument(f"a curve needs as many x as y, at least one; got shapes {across.shape} and {up.shape}")
    if len(across) == 1:
        return float(up[0])
    widths = np.diff(across)
    if not (widths > 0).all():
        raise InvalidArgument("the x of a curve must rise strictly")
    return float((widths * (up[1:] + up[:-1]) / 2).sum() / widths.sum())


# Shared small parts ---------------------------------------------------------------------------------------------------


def _two_sided(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise InvalidArgument(f"a confidence level must lie strictly between 0 and 1, got {level}")
    return normal_quantile((1 + level) / 2)


def _per_task(successes: Sequence[int], tries: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    solved, tried = np.asarray(successes, dtype=float), np.asarray(tries, dtype=float)
    if solved.shape != tried.shape or solved.ndim != 1:
        raise InvalidArgument(
            f"one number of successes and of tries per task, got shapes {solved.shape} and {tried.shape}"
        )
    if bool(((solved < 0) | (solved > tried) | (tried < 1)).any()):
        raise InvalidArgument("every task needs at least one try and between 0 and that many successes")
    return solved, tried


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    spread = float(a.std() * b.std())
    shared = float(((a - a.mean()) * (b - b.mean())).mean())
    if shared > 0:  # without it, equal results on a few tasks would prove that there is no difference
        shared = max(0.0, shared - 1 / (2 * len(a)))
    return shared / spread if spread > 1e-12 else 0.0


def _exact_sign_flip(sizes: np.ndarray, observed: int) -> float:
    """P(|sum of randomly signed sizes| >= observed), by adding one size at a time to the distribution of the sum."""
    total = int(sizes.sum())
    mass = np.zeros(2 * total + 1)
    mass[total] = 1.0
    for size in sizes:
        mass = (np.roll(mass, size) + np.roll(mass, -size)) / 2  # nothing wraps: the support stays within +-total
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(mass[sums >= observed].sum()))
