"""GAE on a value fitted to the batch: ridge regression on text, with shrunken task and state effects."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns, renumber
from gagpo.credit.turns.grouping import (
    generalised_advantage,
    group_mean,
    over_batch,
    return_to_go,
    temporal_difference,
)

PRECISION = 1e-5
"""Precision of the fit relative to the largest reward (features are float32)."""

RIDGE = 10.0
"""Penalty of the regression."""


class EmpiricalBayes(CreditSettings):
    """GAE on ``V = x w + u_task + u_state``, fitted to the other episodes of the batch.

    ``x w`` is a ridge regression of discounted returns on a turn's words. ``u_task`` and ``u_state`` are mean residuals
    of the task's other episodes and of their visits to the state. A mean of n is shrunk by ``n/(n + k)``, k the ratio
    of the variance within groups to that between them (Efron and Morris 1973). Since its own episode is left out, the
    baseline is unbiased. Advantages are normalised over the batch: within a group without success the residual error
    would be scaled up to the size of a success.

    features: see :func:`gagpo.credit.turns.features.feature_columns`.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["empirical_bayes"] = "empirical_bayes"
    key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.5, ge=0, le=1)
    features: ClassVar[int] = 64

    def advantage(self, turns: Turns) -> np.ndarray:
        value_N = self.value(turns)
        delta_N = temporal_difference(turns.net_reward_N, value_N, turns.last_N, self.gamma)
        if np.ptp(delta_N) <= PRECISION * np.abs(turns.net_reward_N).max():
            return np.zeros(turns.turns)  # do not normalise the error of the fit
        advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, self.lam)
        return over_batch(advantage_N)

    def value(self, turns: Turns) -> np.ndarray:
        """``V`` of each turn, float64[N]; without ``feature_NF`` only a constant is fitted."""
        return_N = return_to_go(turns.net_reward_N, turns.last_N, self.gamma)
        feature_NF = np.ones((turns.turns, 1)) if turns.feature_NF is None else turns.feature_NF
        value_N = ridge_without_own_episode(feature_NF, return_N, turns.episode_N, RIDGE)

        # Task effects average over episodes, state effects over an episode's visits.
        residual_E = group_mean(return_N - value_N, turns.episode_N, turns.episodes)
        task_E = shrunk_without_own(residual_E, turns.group_index_E, np.arange(turns.episodes))
        value_N = value_N + task_E[turns.episode_N]
        return np.asarray(value_N + shrunk_without_own(return_N - value_N, turns.states(), turns.episode_N))


def ridge_without_own_episode(
    feature_NF: np.ndarray, target_N: np.ndarray, episode_N: np.ndarray, ridge: float
) -> np.ndarray:
    """Predict each turn by ridge regression on the turns of all other episodes, float64[N].

    ``min |y - X w|^2 + ridge |w|^2``; the weight of the first feature, the constant, is not penalised. A single episode
    gives 0. One regression serves all episodes: with H the hat matrix of an episode's own turns, the leave-one-out
    residuals are ``(I - H)^-1`` times the residuals.
    """
    if episode_N[-1] == 0:
        return np.zeros(len(target_N))
    penalty_F = np.full(feature_NF.shape[1], ridge, feature_NF.dtype)
    penalty_F[0] = 0.0
    gram_FF = feature_NF.T @ feature_NF + np.diag(penalty_F)
    root_FF = np.linalg.cholesky(gram_FF)
    white_NF = feature_NF @ np.linalg.inv(root_FF).T  # X A^-1/2, so that H is a product of its rows
    error_N = target_N - white_NF @ (white_NF.T @ target_N.astype(white_NF.dtype))
    length_E = np.bincount(episode_N)
    first_E = np.cumsum(length_E) - length_E
    left_out_N = np.empty(len(target_N))
    for length in np.unique(length_E):
        place_ET = first_E[length_E == length][:, None] + np.arange(length)
        own_ETF = white_NF[place_ET]
        rest_ETT = np.eye(length) - own_ETF @ own_ETF.transpose(0, 2, 1)
        left_out_N[place_ET] = np.linalg.solve(rest_ETT, error_N[place_ET][..., None])[..., 0]
    return np.asarray(target_N - left_out_N)


def shrunk_without_own(value: np.ndarray, group: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Mean of the other owners' n values in the group, times ``n/(n + k)``; 0 in a group of one owner. float64.

    k is :func:`variance_ratio`; it is infinite, and all means 0, where groups differ no more than by chance.
    """
    groups, pair = int(group.max()) + 1, renumber(group * (int(owner.max()) + 1) + owner)
    total = np.bincount(group, value, groups)[group] - np.bincount(pair, value)[pair]
    count = np.bincount(group, minlength=groups)[group] - np.bincount(pair)[pair]
    shrunk = np.maximum(count, 1) + variance_ratio(value, group, groups)
    return np.where(count > 0, total / shrunk, 0.0)


def variance_ratio(value: np.ndarray, group: np.ndarray, groups: int) -> float:
    """Variance within groups over variance between groups, by the method of moments; infinite where the latter is 0."""
    size_G = np.bincount(group, minlength=groups).astype(np.float64)
    mean_G = group_mean(value, group, groups)
    within = float(((value - mean_G[group]) ** 2).sum()) / max(len(value) - groups, 1)
    between = float((size_G * (mean_G - value.mean()) ** 2).sum()) / max(groups - 1, 1)
    typical = (len(value) - float((size_G**2).sum()) / len(value)) / max(groups - 1, 1)
    effect = (between - within) / typical if typical > 0 else 0.0
    return within / effect if effect > 0 else np.inf
