"""GAGPO: temporal-difference credit on a value proxy that the task group itself provides (arXiv 2605.13217)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns
from gagpo.credit.turns.graph import EXACT, graph_value, next_state
from gagpo.credit.turns.grouping import (
    EPSILON,
    generalised_advantage,
    group_std,
    next_in_episode,
    return_to_go,
    standardise,
    temporal_difference,
)

Norm = Literal["group", "batch", "state", "scale_only", "none"]
"""Over which turns advantages are normalised."""


class Gagpo(CreditSettings):
    """Grouped value proxy and generalised advantages over turns.

    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, ``A_t = delta_t + gamma lam A_{t+1}``, then normalised over all turns
    of the task group: ``(A - mean)/(std + 1e-6)`` with the sample standard deviation.

    lam: 0 is the one-step error, 1 is Monte-Carlo, ``G - V(s)``. scope: where equal state ids are the same state.
    leave_one_out, proxy: see :meth:`value`. bootstrap_truncated: value an episode that was cut off by its last state's
    proxy instead of 0 (``proxy="graph"``: by that of the state it was cut off in, where that was acted in). norm:
    ``group``; ``batch`` (all turns); ``state`` (the state group); ``scale_only`` (by the group's deviation, mean kept);
    ``none``. A normalised group without variance is 0. trajectory_weight: adds that much of GRPO's episode advantage
    (the paper finds that it hurts).

    >>> turns = Turns([0, 0, 10, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0], state_N=[0, 1, 2, 0, 1, 3])
    >>> Gagpo(lam=0.0, norm="none").advantage(turns).round(4).tolist()
    [0.0, 4.75, 0.0, 0.0, -4.75, 0.0]
    """

    level: ClassVar[Level] = "turn"
    name: Literal["gagpo"] = "gagpo"
    key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.8, ge=0, le=1)
    scope: Literal["task", "batch"] = "task"
    leave_one_out: bool = False
    bootstrap_truncated: bool = False
    proxy: Literal["return", "outcome", "graph"] = "return"
    norm: Norm = "group"
    trajectory_weight: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _one_fixed_point(self) -> Gagpo:
        if self.proxy == "graph" and (self.gamma == 1 or self.leave_one_out):
            raise InvalidArgument(
                "proxy=graph solves for all states at once: set gamma below 1 and leave_one_out=false"
            )
        return self

    @property
    def follows_states(self) -> bool:
        return self.proxy == "graph"

    def advantage(self, turns: Turns) -> np.ndarray:
        value_N = self.value(turns)
        delta_N = temporal_difference(turns.net_reward_N, value_N, self._next_value(turns, value_N), self.gamma)
        if self.proxy == "graph":  # what is left of a sum that is 0 must not be normalised into an advantage
            delta_N = np.where(np.abs(delta_N) <= 10 * EXACT * np.abs(value_N).max(), 0.0, delta_N)
        advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, self.lam)
        advantage_N = normalised(advantage_N, turns, self.norm, self.scope)
        if self.trajectory_weight:
            advantage_N = advantage_N + self.trajectory_weight * Grpo().advantage(turns)
        return advantage_N

    def _next_value(self, turns: Turns, value_N: np.ndarray) -> np.ndarray:
        if not self.bootstrap_truncated:
            return next_in_episode(value_N, turns.last_N)
        if self.proxy == "graph":
            state_N = turns.states(self.scope)
            states = int(state_N.max()) + 1
            value_S = np.zeros(states + 1)
            value_S[state_N] = value_N
            return np.asarray(value_S[next_state(turns, state_N, states, self.scope, True)])
        cut_N = turns.last_N & turns.truncated_E[turns.episode_N]
        return np.where(cut_N, value_N, next_in_episode(value_N, turns.last_N))

    def value(self, turns: Turns) -> np.ndarray:
        """``V(s_{i,t})``: mean over all visits of the state, float64[N].

        Averaged is the discounted return-to-go ``G`` (``proxy="return"``), the episode's undiscounted net return
        (``proxy="outcome"``), or what follows on the group's merged graph (``proxy="graph"``, see
        :func:`gagpo.credit.turns.graph.graph_value`). With ``leave_one_out`` a turn's own visit is left out of
        its mean; a state visited once then keeps its own value, so that it gives no advantage in either way.
        """
        if self.proxy == "graph":
            return graph_value(turns, self.gamma, self.scope, self.bootstrap_truncated)
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


def normalised(
    advantage_N: np.ndarray,
    turns: Turns,
    norm: Norm,
    scope: Literal["task", "batch"] = "task",
) -> np.ndarray:
    """Advantages normalised over the turns of a group, see :class:`Gagpo`."""
    if norm == "none":
        return advantage_N
    group_N, groups = _compared(turns, norm, scope)
    if norm == "scale_only":
        std_N = group_std(advantage_N, group_N, groups)[group_N]
        return np.where(std_N > 0, advantage_N / (std_N + EPSILON), 0.0)
    return standardise(advantage_N, group_N, groups)


def _compared(turns: Turns, norm: Norm, scope: Literal["task", "batch"]) -> tuple[np.ndarray, int]:
    """Which turns are normalised together, int64[N], and in how many groups."""
    if norm == "batch":
        return np.zeros(turns.turns, np.int64), 1
    if norm == "state":
        state_N = turns.states(scope)
        return state_N, int(state_N.max()) + 1
    return turns.group_index_N, turns.groups
