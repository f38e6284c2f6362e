"""Credit that is the same for every turn of an episode: its return against the returns of its task group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.registry import CreditSettings
from gagpo.credit.turns.columns import Coding, Turns
from gagpo.credit.turns.grouping import centre, group_mean, standardise


class Grpo(CreditSettings):
    """``(R - mean)/(std + 1e-6)`` over the task group (arXiv 2402.03300).

    A group of one, or with equal returns, gives 0.

    reward: an episode's number: the ``sum`` of its rewards less penalties, or its ``success`` as 0/1 (APMPO).
    ddof: 1 for the sample deviation, 0 for the population's (APMPO).

    >>> Grpo().advantage(Turns([1, 0, 0], [0, 1, 1], [0, 0])).round(3).tolist()
    [0.707, -0.707, -0.707]
    """

    name: Literal["grpo"] = "grpo"
    reward: Coding = "sum"
    ddof: Literal[0, 1] = 1

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = turns.coded_return_E(self.reward)
        return np.asarray(standardise(return_E, turns.group_index_E, turns.groups, self.ddof)[turns.episode_N])


class DrGrpo(CreditSettings):
    """``R - mean`` over the task group (arXiv 2503.20783)."""

    name: Literal["dr_grpo"] = "dr_grpo"

    def advantage(self, turns: Turns) -> np.ndarray:
        return np.asarray(centre(turns.return_E, turns.group_index_E, turns.groups)[turns.episode_N])


class Rloo(CreditSettings):
    """``R`` less the mean of the group's other episodes (arXiv 2402.14740); 0 in a group of one."""

    name: Literal["rloo"] = "rloo"

    def advantage(self, turns: Turns) -> np.ndarray:
        size_E = np.bincount(turns.group_index_E)[turns.group_index_E]
        centred_E = centre(turns.return_E, turns.group_index_E, turns.groups)
        return np.asarray((centred_E * size_E / np.maximum(size_E - 1, 1))[turns.episode_N])


class MaxRl(CreditSettings):
    """``(y - p)/p`` with an episode's success y, 0 or 1, and the task group's rate of it p (arXiv 2602.02710).

    In expectation the gradient of ``sum_k pass@k / k`` up to the group's size, which is that of ``log p`` in the limit.
    A group without success, or with nothing else, gives 0.

    >>> MaxRl().advantage(Turns([1, 0, 0, 0], [0, 1, 2, 3], [0] * 4, success_E=[True, False, False, False])).tolist()
    [3.0, -1.0, -1.0, -1.0]
    """

    name: Literal["max_rl"] = "max_rl"

    def advantage(self, turns: Turns) -> np.ndarray:
        success_E = turns.coded_return_E("success")
        rate_E = group_mean(success_E, turns.group_index_E, turns.groups)[turns.group_index_E]
        centred_E = centre(success_E, turns.group_index_E, turns.groups)
        return np.asarray((centred_E / np.where(rate_E > 0, rate_E, 1.0))[turns.episode_N])


class RejectionSampling(CreditSettings):
    """1 for the episodes that solved their task, which are imitated, and 0 for all others (ReST-EM, arXiv 2312.06585).

    >>> RejectionSampling().advantage(Turns([1, 0], [0, 1], [0, 0], success_E=[True, False])).tolist()
    [1.0, 0.0]
    """

    name: Literal["rejection_sampling"] = "rejection_sampling"

    def advantage(self, turns: Turns) -> np.ndarray:
        return np.asarray(turns.coded_return_E("success")[turns.episode_N])
