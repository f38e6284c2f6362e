"""How far the episodes of a task group differ: dispersion, skewness and the entropy of their votes.

Groups are small (8 episodes), where one outlier decides a deviation. Robust measures ignore it, and are 0 where most of
a group agrees: callers must not divide by them unchecked.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.statistics.groups import centre, group_mean, group_std, varies

Dispersion = Literal["std", "mad", "iqr"]
"""``std``: sample deviation. ``mad``: median absolute deviation * 1.4826. ``iqr``: interquartile range / 1.349. The
factors make the robust two equal to the deviation of a normal distribution."""

Skewness = Literal["authors", "g1"]
"""``g1``: the textbook's bias-corrected skewness. ``authors``: the same formula with the sample deviation, as in AGPO's
released code, which is ``((n-1)/n)^1.5`` of it."""

MAD_TO_STD = 1.4826
IQR_TO_STD = 1.349
SKEWNESS_LIMIT = 10.0


def group_dispersion(value_E: np.ndarray, group_E: np.ndarray, groups: int, dispersion: Dispersion) -> np.ndarray:
    """Dispersion of each group, float64[groups]; no group may be empty."""
    if dispersion == "std":
        return group_std(value_E, group_E, groups)
    if dispersion == "mad":
        median_E = group_quantile(value_E, group_E, groups, 0.5)[group_E]
        return MAD_TO_STD * group_quantile(np.abs(value_E - median_E), group_E, groups, 0.5)
    quarter_G = group_quantile(value_E, group_E, groups, 0.25)
    return np.asarray((group_quantile(value_E, group_E, groups, 0.75) - quarter_G) / IQR_TO_STD)


def group_quantile(value_E: np.ndarray, group_E: np.ndarray, groups: int, quantile: float) -> np.ndarray:
    """A quantile of each group, linearly interpolated, float64[groups]; no group may be empty.

    >>> group_quantile(np.array([4.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1]), 2, 0.25).tolist()
    [1.5, 9.0]
    """
    size_G = np.bincount(group_E, minlength=groups)
    sorted_E = value_E[np.lexsort((value_E, group_E))]
    first_G = np.cumsum(size_G) - size_G
    position_G = quantile * (size_G - 1)
    below_G = np.floor(position_G).astype(np.int64)
    above_G = np.minimum(below_G + 1, size_G - 1)
    low_G, high_G = sorted_E[first_G + below_G], sorted_E[first_G + above_G]
    return np.asarray(low_G + (position_G - below_G) * (high_G - low_G))


def group_skewness(value_E: np.ndarray, group_E: np.ndarray, groups: int, form: Skewness) -> np.ndarray:
    """Bias-corrected skewness ``sqrt(n(n-1))/(n-2) m3/m2^1.5`` of each group within ±10, float64[groups].

    0 in groups of fewer than three and where all values are equal.
    """
    size_G = np.bincount(group_E, minlength=groups)
    centred_E = centre(value_E, group_E, groups)
    second_G, third_G = group_mean(centred_E**2, group_E, groups), group_mean(centred_E**3, group_E, groups)
    defined_G = varies(value_E, group_E, groups) & (size_G > 2)
    # Groups without a skewness get harmless numbers, so that nothing is divided by 0.
    size_G = np.where(defined_G, size_G, 3)
    skewness_G = third_G / np.where(defined_G, second_G, 1.0) ** 1.5
    skewness_G = skewness_G * np.sqrt(size_G * (size_G - 1.0)) / (size_G - 2.0)
    if form == "authors":
        skewness_G = skewness_G * ((size_G - 1.0) / size_G) ** 1.5
    return np.where(defined_G, np.clip(skewness_G, -SKEWNESS_LIMIT, SKEWNESS_LIMIT), 0.0)


def vote_entropy(vote_E: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """Entropy of each group's votes, nats, float64[groups]."""
    vote_E = np.unique(vote_E, return_inverse=True)[1]
    answers = int(vote_E.max()) + 1
    cell_C, votes_C = np.unique(group_E * answers + vote_E, return_counts=True)
    cell_group_C = cell_C // answers
    share_C = votes_C / np.bincount(group_E, minlength=groups)[cell_group_C]
    return np.bincount(cell_group_C, -share_C * np.log(share_C), groups) + 0.0
