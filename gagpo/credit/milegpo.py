"""MileGPO: GraphGPO's graph with milestones that lead to success and traps that do not (arXiv 2608.19803).

It extends GraphGPO's rewards by potentials, so its fields come in addition to those, and ``eta=0`` is GraphGPO.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.graphgpo import Graphgpo, episode_advantage, step_reward, within_state
from gagpo.credit.registry import Level
from gagpo.credit.statistics.graph import RolloutGraph, largest, success_rate
from gagpo.data import Turns

TOLERANCE = 1e-12
"""Tolerance of comparisons with a threshold that exact fractions would meet."""

TRAP_SCORE = 0.1
"""Smallest score of a trap."""


class Milegpo(Graphgpo):
    """``step_weight (A_G + eta (A_M - A_G)) + episode_weight Norm(Z)`` with GraphGPO's A_G (arXiv 2608.19803).

    A_M normalises ``r_M = r_G + reward lam (delta+ - delta-)``,
    ``delta± = max(potential_gamma w± Phi±(s') - w± Phi±(s), 0)``, with the potentials
    ``Phi±(s) = max_v S±(v) omega^d(s, v)`` of milestones (+) and traps (-), whose scores S are :meth:`milestones` and
    :meth:`traps`. The defaults are those of the ALFWorld runs; the WebShop runs use ``norm=mean``,
    ``retain_coverage=0.5``, ``rest=0.5``, ``eta=1`` and ``retain_branches=True``.

    eta: part of the milestones in the step term; 0 is GraphGPO.
    lam: weight of gains in potential.
    omega: decay of a potential per transition.
    potential_gamma: discount of the next state's potential.
    milestone_weight, trap_weight: w+ and w-.
    success_weight, coverage_weight, degree_weight: parts of a milestone's score.
    failure_weight, revisit_weight: parts of a trap's score.
    distance_progress, success_progress, failure_progress: parts of a transition's local progress.
    branch_weight, progress_weight, context_weight: how branch credit and progress raise a retained milestone's score.
    retain_coverage, retain_branches: which milestones are retained; the others keep the share ``rest`` of their score.
    contextual: False keeps all milestones at their score (the ablation without PCC).
    weighted: False gives all milestones and traps the score 1 (the ablation without RCS).
    """

    level: ClassVar[Level] = "turn"
    name: Literal["milegpo"] = "milegpo"  # type: ignore[assignment]
    eta: float = Field(default=0.2, ge=0)
    lam: float = Field(default=0.25, ge=0)
    omega: float = Field(default=0.2, ge=0, lt=1)
    potential_gamma: float = Field(default=1.0, ge=0, le=1)
    milestone_weight: float = Field(default=1.0, ge=0)
    trap_weight: float = Field(default=0.25, ge=0)
    success_weight: float = Field(default=1.0, ge=0)
    coverage_weight: float = Field(default=1.0, ge=0)
    degree_weight: float = Field(default=0.25, ge=0)
    failure_weight: float = Field(default=1.0, ge=0)
    revisit_weight: float = Field(default=0.25, ge=0)
    distance_progress: float = Field(default=1.0, ge=0)
    success_progress: float = Field(default=1.0, ge=0)
    failure_progress: float = Field(default=1.0, ge=0)
    branch_weight: float = Field(default=1.0, ge=0)
    progress_weight: float = Field(default=1.0, ge=0)
    context_weight: float = Field(default=1.0, ge=0)
    retain_coverage: float = Field(default=1.1, ge=0)  # above 1, coverage alone retains no milestone
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
        step_N = graph_N + self.eta * (mile_N - graph_N)
        return np.asarray(self.step_weight * step_N + self.episode_weight * episode_N)

    def bonus(self, graph: RolloutGraph) -> np.ndarray:
        """``r_M - r_G`` of each transition, float64[N]; within ``reward lam [-w-, w+]``."""
        gains = []
        for score_V, weight in ((self.milestones(graph), self.milestone_weight), (self.traps(graph), self.trap_weight)):
            # Only gains in potential count, not losses.
            potential_V = weight * graph.spread(score_V, self.omega)
            next_N = self.potential_gamma * potential_V[graph.target_N]
            gains.append(np.maximum(next_N - potential_V[graph.source_N], 0.0))
        return np.asarray(self.reward * self.lam * (gains[0] - gains[1]))

    def milestones(self, graph: RolloutGraph) -> np.ndarray:
        """Milestone score of each node, float64[V], divided by the task group's largest; 0 for other nodes.

        Milestones are the states of successful trajectories, except the sink. They score ``S0(v) = success_weight
        max(p+(v) - p+, 0) + coverage_weight m(v) + degree_weight C(v)``, times ``1 + context_weight (branch_weight b(v)
        + progress_weight psi(v))`` if retained and times ``rest`` if not. A milestone is retained for local progress, a
        coverage m of ``retain_coverage`` or, with ``retain_branches``, branch credit. p+(v) and p+ are the shares of
        successes among the trajectories through v and in the group; b is :func:`branch_credit`, psi :meth:`progress`.
        """
        visits = graph.visits
        rate_V = success_rate(graph.turns)[graph.group_V]
        milestone_V = visits.successful > 0
        milestone_V[graph.sink_G] = False  # every success ends there, so it would outscore all states
        if not self.weighted:
            return np.asarray(milestone_V, np.float64)
        # At least 1: a group without a success has no milestones, and no 0 / 0.
        coverage_V = visits.successful / np.maximum(_successes(graph), 1)[graph.group_V]
        score_V = self.success_weight * np.maximum(visits.success_share - rate_V, 0.0)
        score_V = score_V + self.coverage_weight * coverage_V + self.degree_weight * _degree(graph)
        score_V = np.where(milestone_V, score_V, 0.0)  # other nodes have a degree too
        if self.contextual:
            score_V = score_V * self._context(graph, coverage_V)
        return _over_largest(score_V, graph)

    def _context(self, graph: RolloutGraph, coverage_V: np.ndarray) -> np.ndarray:
        """Factor of each milestone's score, float64[V]; ``rest`` if it is not retained."""
        branch_V = branch_credit(graph)
        progress_V = self.progress(graph)
        retained_V = (progress_V > TOLERANCE) | (coverage_V >= self.retain_coverage - TOLERANCE)
        if self.retain_branches:
            retained_V |= branch_V > TOLERANCE
        raised_V = self.branch_weight * branch_V + self.progress_weight * progress_V
        return np.where(retained_V, 1.0 + self.context_weight * raised_V, self.rest)

    def traps(self, graph: RolloutGraph) -> np.ndarray:
        """Trap score of each node, float64[V], divided by the task group's largest; 0 for other nodes.

        Traps are states that only failures visit, at least two of them or one repeatedly, and that score at least .1:
        ``failure_weight max(p-(v) - p-, 0) + revisit_weight m-(v) revisits/visitors``.
        """
        visits = graph.visits
        rate_V = success_rate(graph.turns)[graph.group_V]
        failures_V = (np.bincount(graph.turns.group_index_E) - _successes(graph))[graph.group_V]
        share_V = visits.failed / np.maximum(failures_V, 1) * visits.revisits / np.maximum(visits.trajectories, 1)
        score_V = self.failure_weight * np.maximum(visits.failure_share - (1.0 - rate_V), 0.0)
        score_V = score_V + self.revisit_weight * share_V
        failing_V = (visits.successful == 0) & ((visits.failed >= 2) | ((visits.failed > 0) & (visits.revisits > 0)))
        trap_V = failing_V & (score_V >= TRAP_SCORE - TOLERANCE)
        if not self.weighted:
            return np.asarray(trap_V, np.float64)
        return _over_largest(np.where(trap_V, score_V, 0.0), graph)

    def progress(self, graph: RolloutGraph) -> np.ndarray:
        """``psi(v)``: the largest positive local progress among the edges into v that a success used, float64[V].

        Progress is ``distance_progress (d(u) - d(v)) + success_progress (p+(v) - p+) - failure_progress l``, divided by
        the task's largest. ``l`` is the edge's failure share less its siblings' mean (without siblings, v's less the
        task's), at least 0.
        """
        visits = graph.visits
        uses = graph.uses
        rate_M = success_rate(graph.turns)[graph.group_V[graph.source_M]]
        siblings_M, has_siblings_M = graph.sibling_mean(uses.failure_share)
        alone_M = visits.failure_share[graph.target_M] - (1.0 - rate_M)
        worse_M = np.maximum(np.where(has_siblings_M, uses.failure_share - siblings_M, alone_M), 0.0)
        used_M = uses.successful > 0
        nearer_M = np.zeros(len(used_M))
        distance_V = graph.distance_V
        nearer_M[used_M] = distance_V[graph.source_M[used_M]] - distance_V[graph.target_M[used_M]]
        gain_M = visits.success_share[graph.target_M] - rate_M
        progress_M = self.distance_progress * nearer_M + self.success_progress * gain_M
        progress_M = progress_M - self.failure_progress * worse_M
        progress_M = np.where(used_M & (progress_M > TOLERANCE), progress_M, 0.0)
        return _over_largest(largest(progress_M, graph.target_M, graph.nodes), graph)


def branch_credit(graph: RolloutGraph) -> np.ndarray:
    """``b(v)``: the largest positive branch credit among the edges into v, float64[V], in [0, 1].

    Branch credit is an edge's success share less the mean of its siblings, divided by the task's largest.
    """
    share_M = graph.uses.success_share
    siblings_M, has_siblings_M = graph.sibling_mean(share_M)
    credit_M = np.where(has_siblings_M, share_M - siblings_M, 0.0)
    group_M = graph.group_V[graph.source_M]
    largest_M = graph.highest(np.abs(credit_M), group_M)[group_M]
    credit_M = np.divide(credit_M, largest_M, out=np.zeros(len(credit_M)), where=largest_M > TOLERANCE)
    return largest(credit_M, graph.target_M, graph.nodes)


def _successes(graph: RolloutGraph) -> np.ndarray:
    """Successful episodes of each task group, float64[G]."""
    turns = graph.turns
    return np.bincount(turns.group_index_E, turns.required_success_E, turns.num_groups)


def _degree(graph: RolloutGraph) -> np.ndarray:
    """Edges in and out of each node, divided by the largest number at a node that a success visited, float64[V]."""
    degree_V = np.bincount(graph.source_M, minlength=graph.nodes) + np.bincount(graph.target_M, minlength=graph.nodes)
    largest_G = graph.highest(np.where(graph.visits.successful > 0, degree_V, 0), graph.group_V)
    return np.asarray(degree_V / np.maximum(largest_G, 1.0)[graph.group_V])


def _over_largest(score_V: np.ndarray, graph: RolloutGraph) -> np.ndarray:
    largest_V = graph.highest(score_V, graph.group_V)[graph.group_V]
    return np.asarray(np.divide(score_V, largest_V, out=np.zeros(len(score_V)), where=largest_V > TOLERANCE))
