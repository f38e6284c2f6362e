"""GiGPO: episode advantages plus step advantages within state groups (arXiv 2505.10978).

A step is compared with other steps from an equal state, so it needs no value of that state. What one group visits once
has no step advantage and falls back on its episode's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.groups import EPSILON, group_mean, group_std, normalise
from gagpo.credit.statistics.returns import return_to_go
from gagpo.credit.statistics.similarity import similar_states
from gagpo.data import StateKey, Turns


class Gigpo(CreditSettings):
    """``A^E + step_weight * A^S`` of each turn (arXiv 2505.10978, eq. 3, 7 and 8).

    ``A^E`` normalises the episode's return, less the turn's own penalty, over the task group; equal returns give 0.
    ``A^S`` is :meth:`step_advantage`.

    norm: ``mean_std`` divides both terms by the deviation, ``mean`` does not.
    statistics: of ``A^E`` over each ``episode``, or over each ``turn`` with its episode's return less its own penalty,
        as in the authors' code, where long episodes weigh more.
    similarity: 0 to 1; turns of a task group are in the same state if their observations are at least this similar
        (see :mod:`gagpo.credit.statistics.similarity`), whatever ``state_key`` is. None for equal states.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["gigpo"] = "gigpo"
    state_key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0)
    norm: Literal["mean_std", "mean"] = "mean_std"
    statistics: Literal["episode", "turn"] = "episode"
    similarity: float | None = Field(default=None, gt=0, le=1)

    @property
    def reads_texts(self) -> bool:
        return self.similarity is not None

    def advantage(self, turns: Turns) -> np.ndarray:
        group_N, groups = turns.group_index_N, turns.num_groups
        reward_E = turns.reward_E
        score_N = reward_E[turns.episode_N] - turns.penalty_N
        sample, sample_group = reward_E, turns.group_index_E
        if self.statistics == "turn":
            sample, sample_group = score_N, group_N
        mean_N = group_mean(sample, sample_group, groups)[group_N]
        std_N = group_std(sample, sample_group, groups)[group_N]
        scale_N = std_N + EPSILON if self.norm == "mean_std" else np.ones(turns.num_turns)
        episode_N = np.where(std_N > 0, (score_N - mean_N) / scale_N, 0.0)
        return episode_N + self.step_weight * self.step_advantage(turns)

    def step_advantage(self, turns: Turns) -> np.ndarray:
        """``(G - mean)/(std + 1e-6)`` or ``G - mean`` in the state group, float64[N]; a state visited once gives 0.

        G is the discounted return of the turn, from which its own penalty is subtracted after discounting.
        """
        return_N = return_to_go(turns.reward_N, turns.last_N, self.gamma) - turns.penalty_N
        state_N = turns.states() if self.similarity is None else similar_states(turns, self.similarity)
        return normalise(return_N, state_N, int(state_N.max()) + 1, self.norm)
