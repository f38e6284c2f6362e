"""GAGPO: generalised advantages on a value estimated from the task group (arXiv 2605.13217).

The value of a state is a mean over its visits in the task group, where PPO trains a critic. So nothing has to be
learned before an advantage means something. The price: a state that one episode visits is worth that episode's own
return, so credit per turn needs repeated states (metrics ``repeated_states``, ``visits_1``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.graph import EXACT, cut_state, graph_value
from gagpo.credit.statistics.groups import group_mean, over_batch, scale, standardise
from gagpo.credit.statistics.returns import generalised_advantage, next_in_episode, return_to_go, temporal_difference
from gagpo.data import Scope, StateKey, Turns


class Gagpo(CreditSettings):
    """``A_t = delta_t + gamma lam A_{t+1}`` with ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, then normalised.

    lam: 0 is the one-step TD error, 1 is Monte-Carlo, ``G - V(s)``.
    proxy: what V averages over the visits of a state. ``return`` is the discounted return from the visit on,
        ``outcome`` the episode's whole return without discount, ``graph`` see :func:`graph_value`.
    leave_one_out: leave a turn's own visit out of its V; a state visited once keeps its own.
    bootstrap_truncated: a truncated episode goes on with the V of the state in which it stopped, instead of 0; where no
        episode acted in that state, with the V of its last turn's state.
    scope: states are equal within the ``task`` group, or in the whole ``batch``.
    norm: ``(A - mean)/(std + 1e-6)``, with the sample deviation, over the task ``group``, the ``batch`` or the
        ``state``; ``scale_only`` is ``A/(std + 1e-6)`` over the task group. Without variance 0.
    episode_weight: weight of GRPO's advantage, added after normalisation (it hurts in the paper).
    macro_actions: a turn in a state that is visited once continues the action before it, as in a semi-Markov process
        (Sutton, Precup and Singh, 1999): one TD error for all turns from a repeated state up to the next, and lam
        between these. Without repeated states that is one advantage an episode, as GRPO's.

    >>> turns = Turns.of([0, 0, 10, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0], state_N=[0, 1, 2, 0, 1, 3])
    >>> Gagpo(lam=0.0, norm="none").advantage(turns).round(4).tolist()
    [0.0, 4.75, 0.0, 0.0, -4.75, 0.0]
    """

    level: ClassVar[Level] = "turn"
    name: Literal["gagpo"] = "gagpo"
    state_key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    lam: float = Field(default=0.8, ge=0, le=1)
    proxy: Literal["return", "outcome", "graph"] = "return"
    leave_one_out: bool = False
    bootstrap_truncated: bool = False
    scope: Scope = "task"
    norm: Literal["group", "batch", "state", "scale_only", "none"] = "group"
    episode_weight: float = Field(default=0.0, ge=0)
    macro_actions: bool = False

    @model_validator(mode="after")
    def _has_unique_values(self) -> Gagpo:
        if self.proxy == "graph" and self.gamma == 1:
            raise InvalidArgument(
                "proxy=graph requires gamma below 1: otherwise its values are not unique", key="gamma"
            )
        if self.proxy == "graph" and self.leave_one_out:
            raise InvalidArgument(
                "leave_one_out requires proxy=return or proxy=outcome: proxy=graph solves for the values of all states "
                "together",
                key="leave_one_out",
            )
        if self.macro_actions and self.norm == "state":
            raise InvalidArgument(
                "norm=state has no use for macro_actions: it makes the advantage of every state visited once 0",
                key="norm",
                advice="use norm=group",
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
        if self.macro_actions:
            advantage_N = self._of_macro_actions(delta_N, turns)
        else:
            advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, self.lam)
        advantage_N = self._normalised(advantage_N, turns)
        if self.episode_weight:
            advantage_N = advantage_N + self.episode_weight * Grpo().advantage(turns)
        return advantage_N

    def _of_macro_actions(self, delta_N: np.ndarray, turns: Turns) -> np.ndarray:
        """Each turn's advantage is that of the macro-action it belongs to, float64[N].

        The discounted TD errors within a macro-action telescope to ``sum_i gamma^i r_i + gamma^k V(s_k) - V(s_0)``:
        the values of states that one episode saw, which compare nothing, cancel.
        """
        # A macro-action begins in a repeated state, and with an episode.
        state_N = turns.states(self.scope)
        begins_N = np.bincount(state_N)[state_N] > 1
        begins_N[1:] |= turns.last_N[:-1]
        begins_N[0] = True
        # Errors decay from one to the next only: within one there is no estimate that lam could trust less.
        lam_N = np.where(np.append(begins_N[1:], True), self.lam, 1.0)
        advantage_N = generalised_advantage(delta_N, turns.last_N, self.gamma, lam_N)
        start_N = np.maximum.accumulate(np.where(begins_N, np.arange(turns.num_turns), 0))
        return np.asarray(advantage_N[start_N])

    def value(self, turns: Turns) -> np.ndarray:
        """``V`` of each turn's state, float64[N]; see ``proxy`` and ``leave_one_out``."""
        if self.proxy == "graph":
            return graph_value(turns, self.gamma, self.scope, self.bootstrap_truncated)
        state_N = turns.states(self.scope)
        states = int(state_N.max()) + 1
        visit_N = self._visit_value(turns)
        size_N = np.bincount(state_N, minlength=states)[state_N]
        total_N = np.bincount(state_N, visit_N, states)[state_N]
        if self.leave_one_out:
            return np.where(size_N > 1, (total_N - visit_N) / np.maximum(size_N - 1, 1), visit_N)
        return np.where(size_N > 1, total_N / size_N, visit_N)

    def _visit_value(self, turns: Turns) -> np.ndarray:
        """What ``V`` averages, one number for each turn, float64[N]."""
        if self.proxy == "outcome":
            return np.asarray(turns.return_E[turns.episode_N])
        return return_to_go(turns.net_reward_N, turns.last_N, self.gamma)

    def _next_value(self, turns: Turns, value_N: np.ndarray) -> np.ndarray:
        """``V`` after each turn, float64[N]; 0 after an episode's end."""
        next_N = next_in_episode(value_N, turns.last_N)
        if not self.bootstrap_truncated:
            return next_N
        state_N = turns.states(self.scope)
        cut_E = cut_state(turns, self.scope)
        last_E = state_N[turns.last_N]
        # A leave-one-out value differs between the visits of a state: in the last turn's state it is that turn's.
        visit_N = value_N if self.proxy == "graph" else self._visit_value(turns)
        value_S = group_mean(visit_N, state_N, int(state_N.max()) + 1)
        value_E = np.where(cut_E == last_E, value_N[turns.last_N], value_S[cut_E])
        next_N[turns.last_N] = np.where(turns.truncated_E, value_E, 0.0)
        return next_N

    def _normalised(self, advantage_N: np.ndarray, turns: Turns) -> np.ndarray:
        if self.norm == "group":
            return standardise(advantage_N, turns.group_index_N, turns.num_groups)
        if self.norm == "scale_only":
            return scale(advantage_N, turns.group_index_N, turns.num_groups)
        if self.norm == "state":
            state_N = turns.states(self.scope)
            return standardise(advantage_N, state_N, int(state_N.max()) + 1)
        if self.norm == "batch":
            return over_batch(advantage_N)
        return advantage_N
