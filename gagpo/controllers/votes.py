"""Dispersion, skewness and vote entropy of task groups."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.credit.turns.grouping import centre, group_mean, group_std, varies

Dispersion = Literal["std", "mad", "iqr"]


def group_dispersion(
    value_E: np.ndarray, group_E: np.ndarray, groups: int, dispersion: Dispersion = "std"
) -> np.ndarray:
    """Dispersion of each group, float64[groups]; ``mad`` and ``iqr`` are scaled to the deviation of a normal."""
    if dispersion == "std":
        return group_std(value_E, group_E, groups)
    if dispersion == "mad":
        median_E = group_quantile(value_E, group_E, groups, 0.5)[group_E]
        return 1.4826 * group_quantile(np.abs(value_E - median_E), group_E, groups, 0.5)
    if dispersion == "iqr":
        low_G, high_G = (group_quantile(value_E, group_E, groups, share) for share in (0.25, 0.75))
        return np.asarray((high_G - low_G) / 1.349)
    raise InvalidArgument(f"unknown dispersion {dispersion!r}; choose std, mad or iqr")


def group_quantile(value_E: np.ndarray, group_E: np.ndarray, groups: int, share: float) -> np.ndarray:
    """The ``share`` quantile of each group, linearly interpolated, float64[groups]; groups are not empty."""
    size_G = np.bincount(group_E, minlength=groups)
    sorted_E = value_E[np.lexsort((value_E, group_E))]
    place_G = share * (size_G - 1)
    below_G = np.floor(place_G).astype(np.int64)
    above_G = np.minimum(below_G + 1, size_G - 1)
    start_G = np.cumsum(size_G) - size_G
    low_G, high_G = sorted_E[start_G + below_G], sorted_E[start_G + above_G]
    return np.asarray(low_G + (place_G - below_G) * (high_G - low_G))


def group_skewness(
    value_E: np.ndarray, group_E: np.ndarray, groups: int, bound: float = 10.0, sample: bool = False
) -> np.ndarray:
    """Bias-corrected skewness of each group, clamped to ``±bound``, float64[groups].

    ``sqrt(n(n-1))/(n-2) * m3/m2^1.5`` (G1); 0 for groups of less than three and for equal values.
    sample: use the sample deviation in place of ``m2^0.5``, as AGPO's code does, which gives ``((n-1)/n)^1.5`` of G1.
    """
    size_G = np.bincount(group_E, minlength=groups)
    centred_E = centre(value_E, group_E, groups)
    second_G, third_G = group_mean(centred_E**2, group_E, groups), group_mean(centred_E**3, group_E, groups)
    usable_G = varies(value_E, group_E, groups) & (size_G > 2)
    raw_G = third_G / np.where(usable_G, second_G, 1.0) ** 1.5
    if sample:
        raw_G = raw_G * (np.maximum(size_G - 1, 0) / np.maximum(size_G, 1)) ** 1.5
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
