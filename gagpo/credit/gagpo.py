"""GAGPO: generalised advantages on a value estimated from the task group (arXiv 2605.13217)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns
from gagpo.credit.turns.graph import EXACT, graph_value
from gagpo.credit.turns.grouping import (
    generalised_advantage,
    over_batch,
    return_to_go,
    standardise,
    temporal_difference,
)


class Gagpo(CreditSettings):
    """``A_t = delta_t + gamma lam A_{t+1}`` with ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, then normalised.

    lam: 0 is the one-step TD error, 1 is Monte-Carlo, ``G - V(s)``.
    proxy: see :meth:`value`.
    norm: ``(A - mean)/(std + 1e-6)``, with the sample deviation, over the task ``group`` or the ``batch``; without
        variance 0.
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
    proxy: Literal["return", "graph"] = "return"
    norm: Literal["group", "batch", "none"] = "group"
    trajectory_weight: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _one_fixed_point(self) -> Gagpo:
        if self.proxy == "graph" and self.gamma == 1:
            raise InvalidArgument("proxy=graph requires gamma below 1: otherwise its values are not unique")
        return self

    @property
    def follows_states(self) -> bool:
        return self.proxy == "graph"

    def advantage(self, turns: Turns) -> np.ndarray:
        value_N = self.value(turns)
        delta_N = temporal_difference(turns.net_reward_N, value_N, turns.last_N, self.gamma)
        if self.proxy == "graph":  # a rounding error must not be normalised into an advantage
            delta_N = np.where(np.abs(delta_N) <= 10 * EXACT * np.abs(value_N).max(), 0.0, delta_N)
        advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, self.lam)
        if self.norm == "group":
            advantage_N = standardise(advantage_N, turns.group_index_N, turns.groups)
        elif self.norm == "batch":
            advantage_N = over_batch(advantage_N)
        if self.trajectory_weight:
            advantage_N = advantage_N + self.trajectory_weight * Grpo().advantage(turns)
        return advantage_N

    def value(self, turns: Turns) -> np.ndarray:
        """``V`` of each turn's state, float64[N].

        ``proxy="return"`` is the mean discounted return of all visits in the task group, ``"graph"`` is
        :func:`gagpo.credit.turns.graph.graph_value`.
        """
        if self.proxy == "graph":
            return graph_value(turns, self.gamma)
        state_N = turns.states()
        states = int(state_N.max()) + 1
        return_N = return_to_go(turns.net_reward_N, turns.last_N, self.gamma)
        size_N = np.bincount(state_N, minlength=states)[state_N]
        total_N = np.bincount(state_N, return_N, states)[state_N]
        return np.where(size_N > 1, total_N / size_N, return_N)
