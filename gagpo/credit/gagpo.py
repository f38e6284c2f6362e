"""GAGPO: generalised advantages on a value estimated from the task group (arXiv 2605.13217)."""

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
"""The turns over which advantages are normalised."""


class Gagpo(CreditSettings):
    """``A_t = delta_t + gamma lam A_{t+1}`` with ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, then normalised.

    lam: 0 is the one-step TD error, 1 is Monte-Carlo, ``G - V(s)``.
    scope: whether equal ids are one state within a ``task`` group or in the whole ``batch``.
    leave_one_out, proxy: see :meth:`value`.
    bootstrap_truncated: the end of a truncated episode is worth its last state's value, not 0 (``proxy="graph"``: its
        end state's, if another episode acted in it).
    norm: ``(A - mean)/(std + 1e-6)``, with the sample deviation, over the task ``group``, the ``batch`` or the
        ``state``; ``scale_only`` divides by the group's deviation alone. Groups without variance give 0.
    trajectory_weight: weight of GRPO's advantage, added after normalisation (it hurts in the paper).

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
                "proxy=graph requires gamma below 1 and leave_one_out=false: it solves for all states at once"
            )
        return self

    @property
    def follows_states(self) -> bool:
        return self.proxy == "graph"

    def advantage(self, turns: Turns) -> np.ndarray:
        value_N = self.value(turns)
        delta_N = temporal_difference(turns.net_reward_N, value_N, self._next_value(turns, value_N), self.gamma)
        if self.proxy == "graph":  # a rounding error must not be normalised into an advantage
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
        """``V`` of each turn's state, float64[N]: a mean over all visits.

        ``proxy="return"`` averages discounted returns, ``"outcome"`` undiscounted episode returns; ``"graph"`` is
        :func:`gagpo.credit.turns.graph.graph_value`. ``leave_one_out`` excludes the turn's own visit, except in a state
        visited once.
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
    advantage_N: np.ndarray, turns: Turns, norm: Norm, scope: Literal["task", "batch"] = "task"
) -> np.ndarray:
    """Normalise advantages; see :class:`Gagpo`."""
    if norm == "none":
        return advantage_N
    group_N, groups = turns.group_index_N, turns.groups
    if norm == "batch":
        group_N, groups = np.zeros(turns.turns, np.int64), 1
    elif norm == "state":
        group_N = turns.states(scope)
        groups = int(group_N.max()) + 1
    elif norm == "scale_only":
        std_N = group_std(advantage_N, group_N, groups)[group_N]
        return np.where(std_N > 0, advantage_N / (std_N + EPSILON), 0.0)
    return standardise(advantage_N, group_N, groups)
