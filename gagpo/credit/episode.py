"""Credit that is the same for every turn of an episode: its return against the returns of its task group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.registry import CreditSettings
from gagpo.credit.turns.columns import Coding, Turns
from gagpo.credit.turns.grouping import centre, group_mean, standardise, varies


class Grpo(CreditSettings):
    """``(R - mean)/(std + 1e-6)`` over the task group (arXiv 2402.03300).

    A group of one, or with equal returns, gives 0. reward, here and in all its kin: an episode's number is the ``sum``
    of its rewards less penalties, its ``success`` as 0/1, or the ``sign`` -1/+1 of its success. ddof: 1 for the sample
    deviation, 0 for the population's (APMPO).

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
    reward: Coding = "sum"

    def advantage(self, turns: Turns) -> np.ndarray:
        return np.asarray(centre(turns.coded_return_E(self.reward), turns.group_index_E, turns.groups)[turns.episode_N])


class Rloo(CreditSettings):
    """``R`` less the mean of the group's other episodes (arXiv 2402.14740); 0 in a group of one."""

    name: Literal["rloo"] = "rloo"
    reward: Coding = "sum"

    def advantage(self, turns: Turns) -> np.ndarray:
        size_E = np.bincount(turns.group_index_E)[turns.group_index_E]
        centred_E = centre(turns.coded_return_E(self.reward), turns.group_index_E, turns.groups)
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
    """1 for the episodes that are imitated and 0 for all others (ReST-EM, arXiv 2312.06585).

    of: those that solved their task (``success``), or those whose return is the highest of a task group in which
    returns differ (``best``).

    >>> RejectionSampling().advantage(Turns([1, 0], [0, 1], [0, 0], success_E=[True, False])).tolist()
    [1.0, 0.0]
    """

    name: Literal["rejection_sampling"] = "rejection_sampling"
    of: Literal["success", "best"] = "success"

    def advantage(self, turns: Turns) -> np.ndarray:
        if self.of == "success":
            return np.asarray(turns.coded_return_E("success")[turns.episode_N])
        highest_G = np.full(turns.groups, -np.inf)
        np.maximum.at(highest_G, turns.group_index_E, turns.return_E)
        best_E = turns.return_E == highest_G[turns.group_index_E]
        differ_E = varies(turns.return_E, turns.group_index_E, turns.groups)[turns.group_index_E]
        return np.asarray((best_E & differ_E).astype(np.float64)[turns.episode_N])
