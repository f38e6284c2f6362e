"""Episode-level credits: an episode's return compared with the returns of its task group.

These are the baselines of credit per turn. All turns of an episode have its advantage, so a good turn of a failed
episode is punished; in exchange, nothing depends on states, and an environment needs none.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings
from gagpo.credit.statistics.dispersion import Dispersion, group_dispersion
from gagpo.credit.statistics.groups import centre, group_mean, group_std, standardise
from gagpo.data import Turns
from gagpo.data.turns import EpisodeReward

SMALLEST = 1e-8
"""Smallest dispersion that AGPO divides by."""


class Grpo(CreditSettings):
    """``(R - mean)/(std + 1e-6)`` over the task group (arXiv 2402.03300).

    A group of one, or with equal returns, gives 0.

    reward: R is the ``sum`` of the episode's rewards less penalties, or its ``success`` as 0/1 (APMPO).
    ddof: 1 for the sample deviation, 0 for the population's (APMPO).

    >>> Grpo().advantage(Turns.of([1, 0, 0], [0, 1, 1], [0, 0])).round(3).tolist()
    [0.707, -0.707, -0.707]
    """

    name: Literal["grpo"] = "grpo"
    reward: EpisodeReward = "sum"
    ddof: Literal[0, 1] = 1

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = turns.episode_reward(self.reward)
        return np.asarray(standardise(return_E, turns.group_index_E, turns.num_groups, self.ddof)[turns.episode_N])


class DrGrpo(CreditSettings):
    """``R - mean`` over the task group (arXiv 2503.20783)."""

    name: Literal["dr_grpo"] = "dr_grpo"

    def advantage(self, turns: Turns) -> np.ndarray:
        return np.asarray(centre(turns.return_E, turns.group_index_E, turns.num_groups)[turns.episode_N])


class Rloo(CreditSettings):
    """``R`` less the mean of the group's other episodes (arXiv 2402.14740); 0 in a group of one."""

    name: Literal["rloo"] = "rloo"

    def advantage(self, turns: Turns) -> np.ndarray:
        size_E = np.bincount(turns.group_index_E)[turns.group_index_E]
        centred_E = centre(turns.return_E, turns.group_index_E, turns.num_groups)
        return np.asarray((centred_E * size_E / np.maximum(size_E - 1, 1))[turns.episode_N])


class MaxRl(CreditSettings):
    """``(y - p)/p``, y the episode's success as 0/1 and p the task group's success rate (arXiv 2602.02710).

    Its expectation is the gradient of ``sum_k pass@k / k`` up to the group's size. Groups of equal outcomes give 0.

    >>> MaxRl().advantage(Turns.of([1, 0, 0, 0], [0, 1, 2, 3], [0] * 4, success_E=[True, False, False, False])).tolist()
    [3.0, -1.0, -1.0, -1.0]
    """

    name: Literal["maxrl"] = "maxrl"

    def advantage(self, turns: Turns) -> np.ndarray:
        success_E = turns.episode_reward("success")
        rate_E = group_mean(success_E, turns.group_index_E, turns.num_groups)[turns.group_index_E]
        centred_E = centre(success_E, turns.group_index_E, turns.num_groups)
        return np.asarray((centred_E / np.where(rate_E > 0, rate_E, 1.0))[turns.episode_N])


class RejectionSampling(CreditSettings):
    """1 for episodes that solved their task, 0 for all others (ReST-EM, arXiv 2312.06585).

    >>> RejectionSampling().advantage(Turns.of([1, 0], [0, 1], [0, 0], success_E=[True, False])).tolist()
    [1.0, 0.0]
    """

    name: Literal["rejection_sampling"] = "rejection_sampling"

    def advantage(self, turns: Turns) -> np.ndarray:
        return np.asarray(turns.episode_reward("success")[turns.episode_N])


class AgpoAdaptive(CreditSettings):
    """``(R - mean)/max(dispersion, 1e-8)`` over the task group; equal returns give 0 (arXiv 2605.20722).

    dispersion: see :data:`~gagpo.credit.statistics.dispersion.Dispersion`. Where most of a group agrees, ``mad`` and
        ``iqr`` are 0 and the division by 1e-8 would give advantages of 1e8: such a group is divided by its deviation
        (ours).
    """

    name: Literal["agpo_adaptive"] = "agpo_adaptive"
    dispersion: Dispersion = "std"

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = turns.return_E
        group_E, groups = turns.group_index_E, turns.num_groups
        spread_G = group_dispersion(return_E, group_E, groups, self.dispersion)
        spread_G = np.where(spread_G > SMALLEST, spread_G, group_std(return_E, group_E, groups))
        scale_G = np.maximum(spread_G, SMALLEST)
        return np.asarray((centre(return_E, group_E, groups) / scale_G[group_E])[turns.episode_N])


class AgpoAsymmetric(CreditSettings):
    """``(R - mean)/sqrt(var + delta^2) + 1[R < 0] * bonus`` with R = +1 for a success, -1 otherwise (arXiv 2605.05826).

    ``var`` is the population variance of the task group. A group that always failed gives ``bonus``, one that always
    succeeded 0. The paper does not give ``delta`` and ``bonus``; the defaults reproduce its curves.
    """

    name: Literal["agpo_asymmetric"] = "agpo_asymmetric"
    delta: float = Field(default=1.0, gt=0)
    bonus: float = Field(default=-1.0, le=0)

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = 2.0 * turns.episode_reward("success") - 1.0
        group_E, groups = turns.group_index_E, turns.num_groups
        scale_E = np.sqrt(group_std(return_E, group_E, groups, ddof=0) ** 2 + self.delta**2)[group_E]
        penalty_E = np.where(return_E < 0, self.bonus, 0.0)
        return np.asarray((centre(return_E, group_E, groups) / scale_E + penalty_E)[turns.episode_N])
