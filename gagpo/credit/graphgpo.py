"""GraphGPO and MileGPO: step rewards from distances on the task group's rollout graph (2605.26684, 2608.19803)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns
from gagpo.credit.turns.graph import RolloutGraph, largest, success_rate
from gagpo.credit.turns.grouping import normalise

TOLERANCE = 1e-12
"""Tolerance of comparisons with a threshold that exact fractions would meet."""

TRAP_SCORE = 0.1
"""Smallest score of a trap."""

REWARD = 10.0
"""Return of the last step of a success."""

# MileGPO's published constants, the same in all of its runs.
LAM = 0.25
"""Weight of gains in potential."""
OMEGA = 0.2
"""Decay of a potential per transition."""
TRAPS = 0.25
"""Weight of traps, where milestones have 1."""
DEGREE = 0.25
"""Weight of a state's degree in a milestone's score."""
REVISITS = 0.25
"""Weight of revisits in a trap's score."""


class Graphgpo(CreditSettings):
    """``Norm(r_G) + episode_weight Norm(Z)``, ``r_G(u -> v) = 10 gamma^d(v, g)`` (arXiv 2605.26684).

    ``d(v, g)`` is the number of transitions on the shortest observed path from v to success; the last step of a success
    gives 10. ``Z`` is the episode's net return. r_G is normalised over all transitions from one state, Z over the task
    group; single transitions and ties give 0.

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
    key: StateKey = "auto"
    gamma: float = Field(default=0.2, gt=0, lt=1)
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
        return step_N + self.episode_weight * episode_advantage(turns, self.norm, self.statistics)


def step_reward(graph: RolloutGraph, settings: Graphgpo) -> np.ndarray:
    """``r_G`` of each transition, float64[N]; see :class:`Graphgpo`."""
    distance_V = graph.distance_V
    if settings.unreachable == "farther":
        reached_V = np.where(np.isfinite(distance_V), distance_V, 0.0)
        farthest_V = graph.highest(reached_V, graph.group_V)[graph.group_V]
        distance_V = np.where(np.isinf(distance_V) & (farthest_V > 0), farthest_V + 1, distance_V)
    return_N = REWARD * settings.gamma ** distance_V[graph.target_N]
    return np.asarray(return_N - graph.turns.penalty_N if settings.penalised else return_N)


def within_state(graph: RolloutGraph, value_N: np.ndarray, norm: str) -> np.ndarray:
    """Normalise over all transitions from the same state, float64[N]."""
    return normalise(value_N, graph.source_N, graph.nodes, norm)


def episode_advantage(turns: Turns, norm: str, statistics: str) -> np.ndarray:
    """``Norm(Z)`` of :class:`Graphgpo` at each turn, float64[N]."""
    if statistics == "turn":
        paid_E = np.bincount(turns.episode_N, turns.reward_N, turns.episodes)
        return normalise(paid_E[turns.episode_N] - turns.penalty_N, turns.group_index_N, turns.groups, norm)
    return np.asarray(normalise(turns.return_E, turns.group_index_E, turns.groups, norm)[turns.episode_N])


class Milegpo(Graphgpo):
    """``A_G + eta (A_M - A_G) + episode_weight Norm(Z)`` with GraphGPO's step term A_G (arXiv 2608.19803).

    A_M normalises ``r_M = r_G + 10 lam (delta+ - delta-)``, ``delta± = max(w± Phi±(s') - w± Phi±(s), 0)``, with the
    potentials ``Phi±(s) = max_v S±(v) omega^d(s, v)`` of milestones (+) and traps (-), whose scores S are
    :meth:`milestones` and :meth:`traps`. The defaults are those of the ALFWorld runs; the WebShop runs use
    ``norm=mean``, ``retain_coverage=0.5``, ``rest=0.5``, ``eta=1`` and ``retain_branches=True``.

    retain_coverage, retain_branches: which milestones are retained; the others keep the share ``rest`` of their score.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["milegpo"] = "milegpo"  # type: ignore[assignment]
    eta: float = Field(default=0.2, ge=0)
    retain_coverage: float = Field(default=1.1, ge=0)
    retain_branches: bool = False
    rest: float = Field(default=0.0, ge=0, le=1)

    def advantage(self, turns: Turns) -> np.ndarray:
        graph = RolloutGraph.of(turns)
        reward_N = step_reward(graph, self)
        graph_N = within_state(graph, reward_N, self.norm)
        mile_N = within_state(graph, reward_N + self.bonus(graph), self.norm)
        episode_N = episode_advantage(turns, self.norm, self.statistics)
        return np.asarray(graph_N + self.eta * (mile_N - graph_N) + self.episode_weight * episode_N)

    def bonus(self, graph: RolloutGraph) -> np.ndarray:
        """``r_M - r_G`` of each transition, float64[N]; within ``10 lam [-w-, 1]``."""
        gains = []
        for score_V, weight in ((self.milestones(graph), 1.0), (self.traps(graph), TRAPS)):
            # Only gains in potential count, not losses.
            potential_V = weight * graph.spread(score_V, OMEGA)
            gains.append(np.maximum(potential_V[graph.target_N] - potential_V[graph.source_N], 0.0))
        return np.asarray(REWARD * LAM * (gains[0] - gains[1]))

    def milestones(self, graph: RolloutGraph) -> np.ndarray:
        """Milestone score of each node, float64[V], divided by the task group's largest; 0 for other nodes.

        Milestones are the states of successful trajectories, except the sink. They score
        ``S0(v) = max(p+(v) - p+, 0) + m(v) + .25 C(v)``, times ``1 + b(v) + psi(v)`` if retained and times ``rest`` if
        not. A milestone is retained for local progress, a coverage m of ``retain_coverage`` or, with
        ``retain_branches``, branch credit.
        """
        visits, rate_V = graph.visits, success_rate(graph.turns)[graph.group_V]
        found_V = visits.successful > 0
        found_V[graph.sink_G] = False
        coverage_V = visits.successful / np.maximum(_successes(graph), 1)[graph.group_V]
        degree_V = _degree(graph)
        score_V = np.maximum(visits.success_share - rate_V, 0.0) + coverage_V + DEGREE * degree_V
        branch_V, progress_V = branch_credit(graph), progress(graph)
        retained_V = (progress_V > TOLERANCE) | (coverage_V >= self.retain_coverage - TOLERANCE)
        if self.retain_branches:
            retained_V |= branch_V > TOLERANCE
        factor_V = np.where(retained_V, 1.0 + (branch_V + progress_V), self.rest)
        return _over_largest(np.where(found_V, score_V, 0.0) * factor_V, graph)

    def traps(self, graph: RolloutGraph) -> np.ndarray:
        """Trap score of each node, float64[V], divided by the task group's largest; 0 for other nodes.

        Traps are states that only failures visit, at least two of them or one repeatedly, and that score at least .1:
        ``max(p-(v) - p-, 0) + .25 m-(v) revisits/visitors``.
        """
        visits, rate_V = graph.visits, success_rate(graph.turns)[graph.group_V]
        failures_V = (np.bincount(graph.turns.group_index_E) - _successes(graph))[graph.group_V]
        share_V = visits.failed / np.maximum(failures_V, 1) * visits.revisits / np.maximum(visits.trajectories, 1)
        score_V = np.maximum(visits.failure_share - (1.0 - rate_V), 0.0) + REVISITS * share_V
        met_V = (visits.successful == 0) & ((visits.failed >= 2) | ((visits.failed > 0) & (visits.revisits > 0)))
        found_V = met_V & (score_V >= TRAP_SCORE - TOLERANCE)
        return _over_largest(np.where(found_V, score_V, 0.0), graph)


def branch_credit(graph: RolloutGraph) -> np.ndarray:
    """``b(v)``: the largest positive branch credit among the edges into v, float64[V], in [0, 1].

    Branch credit is an edge's success share less the mean of its siblings, divided by the task's largest.
    """
    share_M = graph.uses.success_share
    beside_M, others_M = graph.beside_M(share_M)
    credit_M = np.where(others_M, share_M - beside_M, 0.0)
    group_M = graph.group_V[graph.source_M]
    largest_M = graph.highest(np.abs(credit_M), group_M)[group_M]
    credit_M = np.divide(credit_M, largest_M, out=np.zeros(len(credit_M)), where=largest_M > TOLERANCE)
    return largest(credit_M, graph.target_M, graph.nodes)


def progress(graph: RolloutGraph) -> np.ndarray:
    """``psi(v)``: the largest positive local progress among the edges into v that a success used, float64[V].

    Progress is ``d(u) - d(v) + p+(v) - p+ - l``, divided by the task's largest. ``l`` is the edge's failure share less
    its siblings' mean (without siblings, v's less the task's), at least 0.
    """
    visits, uses = graph.visits, graph.uses
    rate_M = success_rate(graph.turns)[graph.group_V[graph.source_M]]
    beside_M, others_M = graph.beside_M(uses.failure_share)
    alone_M = visits.failure_share[graph.target_M] - (1.0 - rate_M)
    worse_M = np.maximum(np.where(others_M, uses.failure_share - beside_M, alone_M), 0.0)
    used_M = uses.successful > 0
    nearer_M = np.zeros(len(used_M))
    distance_V = graph.distance_V
    nearer_M[used_M] = distance_V[graph.source_M[used_M]] - distance_V[graph.target_M[used_M]]
    gain_M = visits.success_share[graph.target_M] - rate_M
    progress_M = nearer_M + gain_M - worse_M
    progress_M = np.where(used_M & (progress_M > TOLERANCE), progress_M, 0.0)
    return _over_largest(largest(progress_M, graph.target_M, graph.nodes), graph)


def _successes(graph: RolloutGraph) -> np.ndarray:
    """Successful episodes of each task group, float64[G]."""
    turns = graph.turns
    return np.bincount(turns.group_index_E, turns.succeeded_E, turns.groups)


def _degree(graph: RolloutGraph) -> np.ndarray:
    """Edges in and out of each node, divided by the largest number at a node that a success visited, float64[V]."""
    degree_V = np.bincount(graph.source_M, minlength=graph.nodes) + np.bincount(graph.target_M, minlength=graph.nodes)
    largest_G = graph.highest(np.where(graph.visits.successful > 0, degree_V, 0), graph.group_V)
    return np.asarray(degree_V / np.maximum(largest_G, 1.0)[graph.group_V])


def _over_largest(score_V: np.ndarray, graph: RolloutGraph) -> np.ndarray:
    largest_V = graph.highest(score_V, graph.group_V)[graph.group_V]
    return np.asarray(np.divide(score_V, largest_V, out=np.zeros(len(score_V)), where=largest_V > TOLERANCE))
