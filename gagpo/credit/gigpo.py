"""GiGPO: episode advantages plus step advantages within state groups (arXiv 2505.10978)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns
from gagpo.credit.turns.grouping import EPSILON, group_mean, group_std, normalise, return_to_go


class Gigpo(CreditSettings):
    """``A^E + step_weight * A^S`` of each turn (arXiv 2505.10978, eq. 3, 7 and 8).

    ``A^E`` normalises the episode's return, less the turn's own penalty, over the task group; equal returns give 0.
    ``A^S`` is :meth:`step_advantage`.

    norm: ``mean_std`` divides both terms by the deviation, ``mean`` does not.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["gigpo"] = "gigpo"
    key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0)
    norm: Literal["mean_std", "mean"] = "mean_std"

    def advantage(self, turns: Turns) -> np.ndarray:
        group_N, groups = turns.group_index_N, turns.groups
        reward_E = np.bincount(turns.episode_N, turns.reward_N, turns.episodes)
        score_N = reward_E[turns.episode_N] - turns.penalty_N
        mean_N = group_mean(reward_E, turns.group_index_E, groups)[group_N]
        std_N = group_std(reward_E, turns.group_index_E, groups)[group_N]
        scale_N = std_N + EPSILON if self.norm == "mean_std" else np.ones(turns.turns)
        episode_N = np.where(std_N > 0, (score_N - mean_N) / scale_N, 0.0)
        return episode_N + self.step_weight * self.step_advantage(turns)

    def step_advantage(self, turns: Turns) -> np.ndarray:
        """``(G - mean)/(std + 1e-6)`` or ``G - mean`` in the state group, float64[N]; a state visited once gives 0.

        G is the discounted return of the turn, from which its own penalty is subtracted after discounting.
        """
        return_N = return_to_go(turns.reward_N, turns.last_N, self.gamma) - turns.penalty_N
        state_N = turns.states()
        return normalise(return_N, state_N, int(state_N.max()) + 1, self.norm)
