"""Credit that is the same for every turn of an episode: its return against the returns of its task group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.grouping import EPSILON, centre, group_mean, group_std, standardise, varies
from gagpo.credit.turns import BadTurns, Turns
from gagpo.envs.errors import InvalidArgument

Reward = Literal["sum", "success", "sign"]
Dispersion = Literal["std", "mad", "iqr"]


def grpo_advantage(turns: Turns, reward: Reward = "sum", epsilon: float = EPSILON) -> np.ndarray:
    """GRPO: ``(R - mean)/(std + epsilon)`` over the task group, float64[N] (arXiv 2402.03300).

    A group of one, or with equal returns, gives 0.

    >>> grpo_advantage(Turns([1, 0, 0], [0, 1, 1], [0, 0])).round(3).tolist()
    [0.707, -0.707, -0.707]
    """
    return_E = turns.coded_return_E(reward)
    return standardise(return_E, turns.group_index_E, turns.groups, epsilon=epsilon)[turns.episode_N]


def dr_grpo_advantage(turns: Turns, reward: Reward = "sum") -> np.ndarray:
    """Dr.GRPO: ``R - mean`` over the task group, float64[N] (arXiv 2503.20783)."""
    return centre(turns.coded_return_E(reward), turns.group_index_E, turns.groups)[turns.episode_N]


def rloo_advantage(turns: Turns, reward: Reward = "sum") -> np.ndarray:
    """RLOO: ``R`` less the mean of the group's other episodes, float64[N] (arXiv 2402.14740); 0 in a group of one."""
    size_E = np.bincount(turns.group_index_E)[turns.group_index_E]
    centred_E = centre(turns.coded_return_E(reward), turns.group_index_E, turns.groups)
    return (centred_E * size_E / np.maximum(size_E - 1, 1))[turns.episode_N]


def agpo_asymmetric_advantage(
    turns: Turns, reward: Reward = "sign", delta: float = 1.0, bonus: float = -1.0
) -> np.ndarray:
    """AGPO, asymmetric: ``(R - mean)/sqrt(var + delta^2) + 1[R < 0] * bonus``, float64[N] (arXiv 2605.05826).

    ``var`` is the population variance of the task group. A group that failed wholly gives ``bonus``, one that succeeded
    wholly gives 0, a rare success weighs most. ``delta`` and ``bonus`` are not published; these reproduce the curves
    that the paper describes.

    Raises :class:`BadTurns` unless every return is -1 or +1.
    """
    return_E = turns.coded_return_E(reward)
    wrong = np.flatnonzero(np.abs(return_E) != 1.0)
    if wrong.size:
        raise BadTurns(
            f"asymmetric AGPO wants episode returns of -1 or +1; episode {wrong[0]} has {return_E[wrong[0]]:g}: "
            "use reward='sign', which codes success so"
        )
    group_E, groups = turns.group_index_E, turns.groups
    scale_E = np.sqrt(group_std(return_E, group_E, groups, ddof=0) ** 2 + delta**2)[group_E]
    return (centre(return_E, group_E, groups) / scale_E + np.where(return_E < 0, bonus, 0.0))[turns.episode_N]


def agpo_adaptive_advantage(
    turns: Turns, dispersion: Dispersion = "std", reward: Reward = "sum", epsilon: float = 1e-8
) -> np.ndarray:
    """AGPO, adaptive: ``(R - mean)/max(dispersion, epsilon)`` over the task group, float64[N] (arXiv 2605.20722).

    dispersion: ``std`` (sample), ``mad`` (median absolute deviation * 1.4826) or ``iqr`` (interquartile range / 1.349).
    Equal returns give 0. A robust dispersion is 0 as soon as most of a group agrees; dividing by ``epsilon`` would then
    give advantages of 1e8, so that such a group falls back to its standard deviation (our choice).
    """
    return_E = turns.coded_return_E(reward)
    group_E, groups = turns.group_index_E, turns.groups
    spread_G = group_dispersion(return_E, group_E, groups, dispersion)
    spread_G = np.where(spread_G > epsilon, spread_G, group_std(return_E, group_E, groups))
    return (centre(return_E, group_E, groups) / np.maximum(spread_G, epsilon)[group_E])[turns.episode_N]


def group_dispersion(
    value_E: np.ndarray, group_E: np.ndarray, groups: int, dispersion: Dispersion = "std"
) -> np.ndarray:
    """Dispersion of each group, float64[groups]; the robust ones are scaled to equal the deviation of a normal."""
    if dispersion == "std":
        return group_std(value_E, group_E, groups)
    if dispersion == "mad":
        median_E = group_quantile(value_E, group_E, groups, 0.5)[group_E]
        return 1.4826 * group_quantile(np.abs(value_E - median_E), group_E, groups, 0.5)
    if dispersion == "iqr":
        low_G, high_G = (group_quantile(value_E, group_E, groups, share) for share in (0.25, 0.75))
        return (high_G - low_G) / 1.349
    raise InvalidArgument(f"unknown dispersion {dispersion!r}; choose std, mad or iqr")


def group_quantile(value_E: np.ndarray, group_E: np.ndarray, groups: int, share: float) -> np.ndarray:
    """The ``share`` quantile of each group, linearly interpolated, float64[groups]; no group may be empty."""
    size_G = np.bincount(group_E, minlength=groups)
    sorted_E = value_E[np.lexsort((value_E, group_E))]
    place_G = share * (size_G - 1)
    below_G = np.floor(place_G).astype(np.int64)
    above_G = np.minimum(below_G + 1, size_G - 1)
    start_G = np.cumsum(size_G) - size_G
    low_G, high_G = sorted_E[start_G + below_G], sorted_E[start_G + above_G]
    return low_G + (place_G - below_G) * (high_G - low_G)


def group_skewness(value_E: np.ndarray, group_E: np.ndarray, groups: int, bound: float = 10.0) -> np.ndarray:
    """Bias-corrected sample skewness of each group, clamped to ``±bound``, float64[groups].

    ``sqrt(n(n-1))/(n-2) * m3/m2^1.5``; 0 for groups of less than three and for equal values.
    """
    size_G = np.bincount(group_E, minlength=groups)
    centred_E = centre(value_E, group_E, groups)
    second_G, third_G = group_mean(centred_E**2, group_E, groups), group_mean(centred_E**3, group_E, groups)
    usable_G = varies(value_E, group_E, groups) & (size_G > 2)
    raw_G = third_G / np.where(usable_G, second_G, 1.0) ** 1.5
    correction_G = np.sqrt(size_G * np.maximum(size_G - 1.0, 0.0)) / np.maximum(size_G - 2.0, 1.0)
    return np.where(usable_G, np.clip(correction_G * raw_G, -bound, bound), 0.0)


def vote_entropy(outcome_E: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """Entropy in nats of the outcomes (ids: extracted answers, or how episodes came out) of each group."""
    outcome_E = np.unique(outcome_E, return_inverse=True)[1]
    outcomes = int(outcome_E.max()) + 1
    cell_C, votes_C = np.unique(group_E * outcomes + outcome_E, return_counts=True)
    cell_group_C = cell_C // outcomes
    share_C = votes_C / np.bincount(group_E, minlength=groups)[cell_group_C]
    return np.bincount(cell_group_C, -share_C * np.log(share_C), groups) + 0.0
