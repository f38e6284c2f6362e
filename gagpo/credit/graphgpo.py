"""GraphGPO: a transition is worth how near it comes to success on the task group's rollout graph (2605.26684)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns
from gagpo.credit.turns.graph import RolloutGraph, largest, success_rate
from gagpo.credit.turns.grouping import centre, standardise

TOLERANCE = 1e-12
"""Fractions meet the thresholds exactly; sums of floats miss them by less than this."""

TRAP_SCORE = 0.1
"""A state that only failures visit is a trap from this score on."""


class Graphgpo(CreditSettings):
    """``w_step Norm(r_G) + w_episode Norm(Z)``, ``r_G(u -> v) = reward gamma^d(v, g)`` (arXiv 2605.26684).

    ``d(v, g)`` is the fewest observed transitions from v to success, so that the last step of a success gives
    ``reward``; ``Z`` is the sum of the episode's rewards less penalties. r_G is normalised over all transitions from
    one state, Z over the task group; single ones and ties give 0.

    gamma: .2 in MileGPO's runs; the released recipe has .1 on ALFWorld. norm: ``mean_std`` divides by the sample
    deviation, ``mean`` does not (WebShop). unreachable: a state from which success was never reached returns ``zero``,
    or counts as one step ``farther`` than the farthest that was (the released recipe). penalised: an invalid action's
    penalty is taken off the step's return too (the released recipe). statistics: of Z over ``episode``, or over turn
    rows, each with its episode's rewards less its own penalty alone (``turn``, the released recipe).

    The released recipe, whole: ``gamma=.1`` (WebShop .2), ``unreachable=farther``, ``penalised=True``,
    ``statistics=turn``.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["graphgpo"] = "graphgpo"
    key: StateKey = "auto"
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
    """Values of transitions against those of all transitions from the same state, float64[N]."""
    normalise = standardise if norm == "mean_std" else centre
    return normalise(value_N, graph.source_N, graph.nodes)


def episode_advantage(turns: Turns, norm: str, statistics: str) -> np.ndarray:
    """Episodes' net returns against those of their task group, at each turn, float64[N]; see :class:`Graphgpo`."""
    normalise = standardise if norm == "mean_std" else centre
    if statistics == "turn":
        paid_E = np.bincount(turns.episode_N, turns.reward_N, turns.episodes)
        return normalise(paid_E[turns.episode_N] - turns.penalty_N, turns.group_index_N, turns.groups)
    return np.asarray(normalise(turns.return_E, turns.group_index_E, turns.groups)[turns.episode_N])


class Milegpo(Graphgpo):
    """``w_step [A_G + eta (A_M - A_G)] + w_episode Norm(Z)`` with GraphGPO's step term A_G (arXiv 2608.19803).

    A_M normalises ``r_M = r_G + reward lam (delta+ - delta-)``,
    ``delta± = max(gamma_potential w± Phi±(s') - w± Phi±(s), 0)``, with the potentials
    ``Phi±(s) = max_v S±(v) omega^d(s, v)`` of milestones (+) and traps (-).

    Milestone scores: :meth:`milestones`; trap scores: :meth:`traps`. The defaults are those of the ALFWorld runs; the
    WebShop runs have ``norm=mean``, ``retain_coverage=0.5``, ``rest=0.5``, ``eta=1``, ``retain_branches=True``.
    w_success, w_coverage, w_degree: parts of a milestone's score; w_failure, w_revisits: of a trap's. a_distance,
    a_success, a_failure: parts of an edge's local progress. w_branch, w_progress, w_context: how branch credit and
    progress raise a milestone's score. retain_coverage, retain_branches: when a milestone is retained; others keep the
    share ``rest``. contextual=False: scores are not raised, none is dropped. weighted=False: all targets weigh 1.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["milegpo"] = "milegpo"  # type: ignore[assignment]
    eta: float = Field(default=0.2, ge=0)
    lam: float = Field(default=0.25, ge=0)
    omega: float = Field(default=0.2, ge=0, lt=1)
    gamma_potential: float = Field(default=1.0, ge=0, le=1)
    w_milestones: float = Field(default=1.0, ge=0)
    w_traps: float = Field(default=0.25, ge=0)
    w_success: float = Field(default=1.0, ge=0)
    w_coverage: float = Field(default=1.0, ge=0)
    w_degree: float = Field(default=0.25, ge=0)
    w_failure: float = Field(default=1.0, ge=0)
    w_revisits: float = Field(default=0.25, ge=0)
    a_distance: float = Field(default=1.0, ge=0)
    a_success: float = Field(default=1.0, ge=0)
    a_failure: float = Field(default=1.0, ge=0)
    w_branch: float = Field(default=1.0, ge=0)
    w_progress: float = Field(default=1.0, ge=0)
    w_context: float = Field(default=1.0, ge=0)
    retain_coverage: float = Field(default=1.1, ge=0)
    retain_branches: bool = False
    rest: float = Field(default=0.0, ge=0, le=1)
    contextual: bool = True
    weighted: bool = True

    def advantage(self, turns: Turns) -> np.ndarray:
        graph = RolloutGraph.of(turns)
        reward_N = step_reward(graph, self)
        graph_N = within_state(graph, reward_N, self.norm)
        mile_N = within_state(graph, reward_N + self.bonus(graph), self.norm)
        episode_N = episode_advantage(turns, self.norm, self.statistics)
        return np.asarray(
            self.step_weight * (graph_N + self.eta * (mile_N - graph_N)) + self.episode_weight * episode_N
        )

    def bonus(self, graph: RolloutGraph) -> np.ndarray:
        """``r_M - r_G`` of each transition, float64[N]; within ``reward lam [-w_traps, w_milestones]``."""
        gains = []
        for score_V, weight in ((self.milestones(graph), self.w_milestones), (self.traps(graph), self.w_traps)):
            # What a transition gains in potential; what it loses is no merit of the other kind.
            potential_V = weight * graph.spread(score_V, self.omega)
            ahead_N, here_N = potential_V[graph.target_N], potential_V[graph.source_N]
            gains.append(np.maximum(self.gamma_potential * ahead_N - here_N, 0.0))
        return np.asarray(self.reward * self.lam * (gains[0] - gains[1]))

    def milestones(self, graph: RolloutGraph) -> np.ndarray:
        """Score of each node as a milestone, float64[V], the largest of a task group 1; 0 for nodes that are none.

        Milestones are the states of successful trajectories, the sink excepted:
        ``S0(v) = w_success max(p+(v) - p+, 0) + w_coverage m(v) + w_degree C(v)``, raised to
        ``S0 (1 + w_context (w_branch b(v) + w_progress psi(v)))`` where the milestone is retained, ``rest S0``
        elsewhere. Retained are those with local progress, with a coverage of ``retain_coverage``, or with branch credit
        where ``retain_branches``.
        """
        visits, rate_V = graph.visits, success_rate(graph.turns)[graph.group_V]
        found_V = visits.successful > 0
        found_V[graph.sink_G] = False
        if not self.weighted:
            return found_V.astype(np.float64)
        coverage_V = visits.successful / np.maximum(_successes(graph), 1)[graph.group_V]
        degree_V = _degree(graph)
        score_V = self.w_success * np.maximum(visits.success_share - rate_V, 0.0)
        score_V = np.where(found_V, score_V + self.w_coverage * coverage_V + self.w_degree * degree_V, 0.0)
        if self.contextual:
            branch_V, progress_V = self.branch_credit(graph), self.progress(graph)
            retained_V = (progress_V > TOLERANCE) | (coverage_V >= self.retain_coverage - TOLERANCE)
            if self.retain_branches:
                retained_V |= branch_V > TOLERANCE
            context_V = 1.0 + self.w_context * (self.w_branch * branch_V + self.w_progress * progress_V)
            score_V = score_V * np.where(retained_V, context_V, self.rest)
        return _over_largest(score_V, graph)

    def traps(self, graph: RolloutGraph) -> np.ndarray:
        """Score of each node as a trap, float64[V], the largest of a task group 1; 0 for nodes that are none.

        Traps are states that only failures visit, two of them or one again and again, whose score
        ``w_failure max(p-(v) - p-, 0) + w_revisits m-(v) revisits/visitors`` is at least .1.
        """
        visits, rate_V = graph.visits, success_rate(graph.turns)[graph.group_V]
        failures_V = (np.bincount(graph.turns.group_index_E) - _successes(graph))[graph.group_V]
        share_V = visits.failed / np.maximum(failures_V, 1) * visits.revisits / np.maximum(visits.trajectories, 1)
        score_V = self.w_failure * np.maximum(visits.failure_share - (1.0 - rate_V), 0.0) + self.w_revisits * share_V
        met_V = (visits.successful == 0) & ((visits.failed >= 2) | ((visits.failed > 0) & (visits.revisits > 0)))
        found_V = met_V & (score_V >= TRAP_SCORE - TOLERANCE)
        if not self.weighted:
            return np.asarray(found_V.astype(np.float64))
        return _over_largest(np.where(found_V, score_V, 0.0), graph)

    def branch_credit(self, graph: RolloutGraph) -> np.ndarray:
        """``b(v)``: the largest positive branch credit among the edges into v, float64[V], in [0, 1].

        An edge's is its share of successes less the mean of the other edges' from its source, over the task's largest.
        """
        share_M = graph.uses.success_share
        beside_M, others_M = graph.beside_M(share_M)
        credit_M = np.where(others_M, share_M - beside_M, 0.0)
        group_M = graph.group_V[graph.source_M]
        largest_M = graph.highest(np.abs(credit_M), group_M)[group_M]
        credit_M = np.divide(credit_M, largest_M, out=np.zeros(len(credit_M)), where=largest_M > TOLERANCE)
        return largest(credit_M, graph.target_M, graph.nodes)

    def progress(self, graph: RolloutGraph) -> np.ndarray:
        """``psi(v)``: the largest positive local progress among the edges into v that a success used, float64[V].

        An edge's is ``a_distance (d(u) - d(v)) + a_success (p+(v) - p+) - a_failure l``, with ``l`` how far its share
        of failures lies above that of its siblings (of v above the group's where it has none); over the task's largest.
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
        progress_M = self.a_distance * nearer_M + self.a_success * gain_M - self.a_failure * worse_M
        progress_M = np.where(used_M & (progress_M > TOLERANCE), progress_M, 0.0)
        return _over_largest(largest(progress_M, graph.target_M, graph.nodes), graph)


def _successes(graph: RolloutGraph) -> np.ndarray:
    """Successful episodes of each task group, float64[G]."""
    turns = graph.turns
    return np.bincount(turns.group_index_E, turns.succeeded_E, turns.groups)


def _degree(graph: RolloutGraph) -> np.ndarray:
    """Edges in and out of each node over the largest such number among the success-visited ones, float64[V]."""
    degree_V = np.bincount(graph.source_M, minlength=graph.nodes) + np.bincount(graph.target_M, minlength=graph.nodes)
    largest_G = graph.highest(np.where(graph.visits.successful > 0, degree_V, 0), graph.group_V)
    return np.asarray(degree_V / np.maximum(largest_G, 1.0)[graph.group_V])


def _over_largest(score_V: np.ndarray, graph: RolloutGraph) -> np.ndarray:
    largest_V = graph.highest(score_V, graph.group_V)[graph.group_V]
    return np.asarray(np.divide(score_V, largest_V, out=np.zeros(len(score_V)), where=largest_V > TOLERANCE))
