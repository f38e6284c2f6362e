"""GraphGPO: step rewards from distances on the task group's rollout graph (arXiv 2605.26684).

Transitions of a task group form one graph, so an episode profits from paths that another one found. It trusts the state
key more than a mean over visits does: one wrong edge shortens paths that do not exist (metric ``aliasing``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.graph import RolloutGraph
from gagpo.credit.statistics.groups import normalise
from gagpo.data import StateKey, Turns


class Graphgpo(CreditSettings):
    """``step_weight Norm(r_G) + episode_weight Norm(Z)``, ``r_G(u -> v) = reward gamma^d(v, g)`` (arXiv 2605.26684).

    ``d(v, g)`` is the number of transitions on the shortest observed path from v to success, so the last step of a
    success gives ``reward``. ``Z`` is the episode's net return. r_G is normalised over all transitions from one state,
    Z over the task group; single transitions and ties give 0.

    gamma: .2 in MileGPO's runs.
    norm: ``mean_std`` divides by the sample deviation, ``mean`` does not (WebShop).
    unreachable: a state that never led to success is worth ``zero``, or is one step ``farther`` than the farthest that
        did.
    penalised: subtract the penalty of an invalid action from r_G too.
    statistics: of Z over each ``episode``, or over each ``turn``, less that turn's penalty alone.

    The released recipe: ``gamma=.1`` (WebShop .2), ``unreachable=farther``, ``penalised=True``, ``statistics=turn``.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["graphgpo"] = "graphgpo"
    state_key: StateKey = "auto"
    gamma: float = Field(default=0.2, gt=0, lt=1)
    reward: float = Field(default=10.0, gt=0)
    step_weight: float = Field(default=1.0, ge=0)
    episode_weight: float = Field(default=1.0, ge=0)
    norm: Literal["mean_std", "mean"] = "mean_std"
    unreachable: Literal["zero", "farther"] = "zero"
    penalised: bool = False
    statistics: Literal["episode", "turn"] = "episode"

    @property
    def follows_states(self) -> bool:
        return True

    def advantage(self, turns: Turns) -> np.ndarray:
        graph = RolloutGraph.of(turns)
        step_N = within_state(graph, step_reward(graph, self), self.norm)
        return self.step_weight * step_N + self.episode_weight * episode_advantage(turns, self.norm, self.statistics)


def step_reward(graph: RolloutGraph, settings: Graphgpo) -> np.ndarray:
    """``r_G`` of each transition, float64[N]; see :class:`Graphgpo`."""
    distance_V = graph.distance_V
    if settings.unreachable == "farther":
        reached_V = np.where(np.isfinite(distance_V), distance_V, 0.0)
        farthest_V = graph.highest(reached_V, graph.group_V)[graph.group_V]
        distance_V = np.where(np.isinf(distance_V) & (farthest_V > 0), farthest_V + 1, distance_V)
    return_N = settings.reward * settings.gamma ** distance_V[graph.target_N]
    return np.asarray(return_N - graph.turns.penalty_N if settings.penalised else return_N)


def within_state(graph: RolloutGraph, value_N: np.ndarray, norm: str) -> np.ndarray:
    """Normalise over all transitions from the same state, float64[N]."""
    return normalise(value_N, graph.source_N, graph.nodes, norm)


def episode_advantage(turns: Turns, norm: str, statistics: str) -> np.ndarray:
    """``Norm(Z)`` of :class:`Graphgpo` at each turn, float64[N]."""
    if statistics == "turn":
        reward_E = turns.reward_E
        return normalise(reward_E[turns.episode_N] - turns.penalty_N, turns.group_index_N, turns.num_groups, norm)
    return np.asarray(normalise(turns.return_E, turns.group_index_E, turns.num_groups, norm)[turns.episode_N])
