"""Means and deviations within groups, vectorised over flat columns.

A group whose values are equal but for rounding must give exactly 0. Otherwise rounding errors become advantages, and a
group without contrast counts as one with it.
"""

from __future__ import annotations

import numpy as np

EPSILON = 1e-6
"""Added to a deviation before dividing by it, as in GRPO's code."""

TOLERANCE = 1e-12
"""Values that differ by no more than this part of their size are equal."""


def group_mean(value_N: np.ndarray, group_N: np.ndarray, groups: int) -> np.ndarray:
    """Mean of each group, float64[groups]; 0 for a group without members."""
    size = np.bincount(group_N, minlength=groups)
    return np.asarray(np.bincount(group_N, value_N, groups) / np.maximum(size, 1))


def group_std(value_N: np.ndarray, group_N: np.ndarray, groups: int, ddof: int = 1) -> np.ndarray:
    """Standard deviation of each group, float64[groups]; exactly 0 where the values do not vary."""
    size = np.bincount(group_N, minlength=groups)
    # Centred first: the difference of two sums of squares would lose the digits of a small variance.
    centred = value_N - group_mean(value_N, group_N, groups)[group_N]
    variance = np.bincount(group_N, centred * centred, groups) / np.maximum(size - ddof, 1)
    return np.where(varies(value_N, group_N, groups), np.sqrt(variance), 0.0)


def varies(value_N: np.ndarray, group_N: np.ndarray, groups: int) -> np.ndarray:
    """Whether a group holds two different values, bool[groups].

    Returns that add up the same rewards in another order are equal: a division by the tiny standard deviation of their
    rounding errors would turn these into advantages.
    """
    value_N = np.asarray(value_N, np.float64)
    # Any member serves to compare with: numpy leaves the last one written.
    sample = np.zeros(groups)
    sample[group_N] = value_N
    sample_N = sample[group_N]
    rounding_N = TOLERANCE * np.minimum(np.abs(value_N), np.abs(sample_N))
    return np.bincount(group_N, np.abs(value_N - sample_N) > rounding_N, groups) > 0


def at_mean(value_N: np.ndarray, group_N: np.ndarray, groups: int) -> np.ndarray:
    """Whether each value is its group's mean but for rounding, bool[N]."""
    size_N = np.abs(value_N)
    largest = np.zeros(groups)
    np.maximum.at(largest, group_N, size_N)
    distance_N = np.abs(value_N - group_mean(value_N, group_N, groups)[group_N])
    return np.asarray(distance_N <= TOLERANCE * largest[group_N])


def centre(value_N: np.ndarray, group_N: np.ndarray, groups: int) -> np.ndarray:
    """``x - mean`` of the group; exactly 0 where its values do not vary."""
    centred = value_N - group_mean(value_N, group_N, groups)[group_N]
    return np.where(varies(value_N, group_N, groups)[group_N], centred, 0.0)


def standardise(value_N: np.ndarray, group_N: np.ndarray, groups: int, ddof: int = 1) -> np.ndarray:
    """``(x - mean)/(std + 1e-6)`` of the group; exactly 0 where its values do not vary."""
    return np.asarray(centre(value_N, group_N, groups) / (group_std(value_N, group_N, groups, ddof) + EPSILON)[group_N])


def scale(value_N: np.ndarray, group_N: np.ndarray, groups: int) -> np.ndarray:
    """``x/(std + 1e-6)`` of the group, the mean kept; exactly 0 where its values do not vary."""
    scaled_N = value_N / (group_std(value_N, group_N, groups) + EPSILON)[group_N]
    return np.where(varies(value_N, group_N, groups)[group_N], scaled_N, 0.0)


def over_batch(value_N: np.ndarray) -> np.ndarray:
    """:func:`standardise` over all values."""
    return standardise(value_N, np.zeros(len(value_N), np.int64), 1)


def normalise(value_N: np.ndarray, group_N: np.ndarray, groups: int, norm: str, ddof: int = 1) -> np.ndarray:
    """:func:`standardise` for the norm ``mean_std``, :func:`centre` for ``mean``."""
    return centre(value_N, group_N, groups) if norm == "mean" else standardise(value_N, group_N, groups, ddof)
