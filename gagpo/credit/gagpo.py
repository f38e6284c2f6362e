"""GAGPO: temporal-difference credit on a value proxy that the task group itself provides (arXiv 2605.13217)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level, Option
from gagpo.credit.turns.columns import StateKey, Turns
from gagpo.credit.turns.grouping import (
    EPSILON,
    generalised_advantage,
    group_std,
    next_in_episode,
    return_to_go,
    standardise,
    temporal_difference,
)


class Gagpo(CreditSettings):
    """Grouped value proxy and generalised advantages over turns.

    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, ``A_t = delta_t + gamma lam A_{t+1}``, then normalised over all turns
    of the task group: ``(A - mean)/(std + 1e-6)`` with the sample standard deviation.

    lam: 0 is the one-step error, 1 is Monte-Carlo, ``G - V(s)``. scope: where equal state ids are the same state.
    leave_one_out, proxy: see :meth:`value`. bootstrap_truncated: value an episode that was cut off by its last state's
    proxy instead of 0; the state it was cut off in is never acted in, so it has none of its own. norm: ``group``;
    ``batch`` (all turns); ``state`` (the state group); ``scale_only`` (by the group's deviation, mean kept); ``none``.
    A normalised group without variance is 0. trajectory_weight: adds that much of GRPO's episode advantage (the paper
    finds that it hurts).

    >>> turns = Turns([0, 0, 10, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0], state_N=[0, 1, 2, 0, 1, 3])
    >>> Gagpo(lam=0.0, norm="none").advantage(turns).round(4).tolist()
    [0.0, 4.75, 0.0, 0.0, -4.75, 0.0]
    """

    level: ClassVar[Level] = "turn"
    name: Literal["gagpo"] = "gagpo"
    key: StateKey = "observation"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.8, ge=0, le=1)
    scope: Literal["task", "batch"] = "task"
    leave_one_out: bool = False
    bootstrap_truncated: bool = False
    proxy: Literal["return", "outcome"] = "return"
    norm: Literal["group", "batch", "state", "scale_only", "none"] = "group"
    trajectory_weight: float = Field(default=0.0, ge=0)

    def advantage(self, turns: Turns) -> np.ndarray:
        value_N = self.value(turns)
        next_value_N = next_in_episode(value_N, turns.last_N)
        if self.bootstrap_truncated:
            cut_N = turns.last_N & turns.truncated_E[turns.episode_N]
            next_value_N = np.where(cut_N, value_N, next_value_N)
        delta_N = temporal_difference(turns.net_reward_N, value_N, next_value_N, self.gamma)
        advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, self.lam)
        advantage_N = self._normalised(advantage_N, turns)
        if self.trajectory_weight:
            advantage_N = advantage_N + self.trajectory_weight * Grpo().advantage(turns)
        return advantage_N

    def value(self, turns: Turns) -> np.ndarray:
        """``V(s_{i,t})``: mean over all visits of the state, float64[N].

        Averaged is the discounted return-to-go ``G`` (``proxy="return"``) or the episode's undiscounted net return
        (``proxy="outcome"``). With ``leave_one_out`` a turn's own visit is left out of its mean; a state visited once
        then keeps its own value, so that it gives no advantage in either way.
        """
        state_N = turns.states(self.scope)
        states = int(state_N.max()) + 1
        if self.proxy == "return":
            visit_N = return_to_go(turns.net_reward_N, turns.last_N, self.gamma)
        else:
            visit_N = turns.return_E[turns.episode_N]
        size_N = np.bincount(state_N, minlength=states)[state_N]
        total_N = np.bincount(state_N, visit_N, states)[state_N]
        if not self.leave_one_out:
            return np.where(size_N > 1, total_N / size_N, visit_N)
        return np.where(size_N > 1, (total_N - visit_N) / np.maximum(size_N - 1, 1), visit_N)

    def _normalised(self, advantage_N: np.ndarray, turns: Turns) -> np.ndarray:
        if self.norm == "none":
            return advantage_N
        if self.norm == "batch":
            return standardise(advantage_N, np.zeros(turns.turns, np.int64), 1)
        if self.norm == "state":
            state_N = turns.states(self.scope)
            return standardise(advantage_N, state_N, int(state_N.max()) + 1)
        if self.norm == "group":
            return standardise(advantage_N, turns.group_index_N, turns.groups)
        std_N = group_std(advantage_N, turns.group_index_N, turns.groups)[turns.group_index_N]
        return np.where(std_N > 0, advantage_N / (std_N + EPSILON), 0.0)


def value_proxy(turns: Turns, **options: Option) -> np.ndarray:
    """GAGPO's value of each turn's state, float64[N]; see :meth:`Gagpo.value`."""
    return Gagpo.model_validate(options).value(turns)
