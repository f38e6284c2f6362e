"""Skewness and vote entropy of a probe's task groups."""

from __future__ import annotations

import numpy as np

from gagpo.credit.turns.grouping import centre, group_mean, group_std


def group_skewness(value_E: np.ndarray, group_E: np.ndarray, groups: int, bound: float = 10.0) -> np.ndarray:
    """Bias-corrected skewness of each group, clamped to ``±bound``, float64[groups].

    ``sqrt(n(n-1))/(n-2) * m3/s^3`` with the sample deviation s, as in AGPO's code (the textbook's G1 has the
    population's); 0 for groups of less than three and for equal values.
    """
    size_G, std_G = np.bincount(group_E, minlength=groups), group_std(value_E, group_E, groups)
    third_G = group_mean(centre(value_E, group_E, groups) ** 3, group_E, groups)
    usable_G = (std_G > 0) & (size_G > 2)
    raw_G = third_G / np.where(usable_G, std_G, 1.0) ** 3
    correction_G = np.sqrt(size_G * np.maximum(size_G - 1.0, 0.0)) / np.maximum(size_G - 2.0, 1.0)
    return np.where(usable_G, np.clip(correction_G * raw_G, -bound, bound), 0.0)


def vote_entropy(vote_E: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """Entropy of each group's votes, nats, float64[groups]."""
    vote_E = np.unique(vote_E, return_inverse=True)[1]
    kinds = int(vote_E.max()) + 1
    cell_C, votes_C = np.unique(group_E * kinds + vote_E, return_counts=True)
    cell_group_C = cell_C // kinds
    share_C = votes_C / np.bincount(group_E, minlength=groups)[cell_group_C]
    return np.bincount(cell_group_C, -share_C * np.log(share_C), groups) + 0.0
