"""The rollout graph of each task group: its transitions, distances to success, and state values.

Nodes are the states of a task group and one sink ``g``, which the last transition of each success leads to. Edges are
observed transitions; parallel actions are one edge. Shape suffixes: N = turns (transitions), E = episodes, V = nodes,
M = edges, G = task groups.

Nodes and edges are integers in flat arrays, for all groups at once. Each step of a search handles a whole frontier, so
nothing loops over nodes in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gagpo.credit.statistics.groups import group_mean
from gagpo.data import Scope, Turns, renumber

EXACT = 1e-10
"""Error of graph values, relative to the largest."""


@dataclass(frozen=True, eq=False)
class RolloutGraph:
    """The graphs of all task groups, which are not connected.

    source_N, target_N: nodes that a turn leads from and to.
    edge_N: edge of each turn.
    group_V: task group of each node.
    sink_G: sink of each group; no edge leads to it where no episode succeeded.
    source_M, target_M: nodes of each edge.
    """

    turns: Turns
    source_N: np.ndarray
    target_N: np.ndarray
    edge_N: np.ndarray
    group_V: np.ndarray
    sink_G: np.ndarray
    source_M: np.ndarray
    target_M: np.ndarray

    @classmethod
    def of(cls, turns: Turns) -> RolloutGraph:
        """The graph of ``turns`` with ``state_N`` and ``success_E``; an unknown end state is a node of its own."""
        success_E = turns.required_success_E
        state_N = turns.required_state_N
        end_E = turns.end_state_E
        ends_E = np.flatnonzero(turns.last_N)
        if end_E is None:
            end_E = int(state_N.max()) + 1 + np.arange(turns.num_episodes)
        label = renumber(np.concatenate([state_N, end_E]))
        group = np.concatenate([turns.group_index_N, turns.group_index_E])
        node = renumber(group * (int(label.max()) + 1) + label)
        states = int(node.max()) + 1
        groups = turns.num_groups
        source_N = node[: turns.num_turns]
        end_node_E = node[turns.num_turns :]
        sink_G = states + np.arange(groups)
        target_N = np.append(source_N[1:], 0)
        target_N[ends_E] = np.where(success_E, sink_G[turns.group_index_E], end_node_E)
        group_V = np.empty(states + groups, np.int64)
        group_V[node] = group
        group_V[sink_G] = np.arange(groups)
        edge, edge_N = np.unique(source_N * (states + groups) + target_N, return_inverse=True)
        source_M, target_M = np.divmod(edge, states + groups)
        return cls(turns, source_N, target_N, edge_N, group_V, sink_G, source_M, target_M)

    @property
    def nodes(self) -> int:
        return len(self.group_V)

    @cached_property
    def distance_V(self) -> np.ndarray:
        """Fewest transitions to the group's sink, float64[V]: 0 at the sink, infinite where it cannot be reached."""
        into = np.argsort(self.target_M, kind="stable")
        source_M = self.source_M[into]
        count_V = np.bincount(self.target_M, minlength=self.nodes)
        first_V = np.cumsum(count_V) - count_V
        distance_V = np.full(self.nodes, np.inf)
        frontier = self.sink_G
        steps = 0.0
        while len(frontier):
            # The next frontier leads to this one and has no distance yet.
            distance_V[frontier] = steps
            count = count_V[frontier]
            offset = np.repeat(first_V[frontier] - np.cumsum(count) + count, count) + np.arange(count.sum())
            near = source_M[offset]
            frontier = np.unique(near[np.isinf(distance_V[near])])
            steps += 1.0
        return distance_V

    def spread(self, score_V: np.ndarray, decay: float) -> np.ndarray:
        """``max_v score(v) decay^d(s, v)`` of each node s, float64[V]; scores are >= 0 and ``decay`` is in [0, 1)."""
        order = np.argsort(self.source_M, kind="stable")
        source_M, target_M = self.source_M[order], self.target_M[order]
        first = np.flatnonzero(np.diff(source_M, prepend=-1))
        spread_V = score_V.astype(np.float64)
        while True:
            # Every node takes the best of its successors, decayed once, until none rises.
            ahead = decay * np.maximum.reduceat(spread_V[target_M], first)
            rises = ahead > spread_V[source_M[first]]
            if not rises.any():
                return spread_V
            spread_V[source_M[first][rises]] = ahead[rises]

    @cached_property
    def visits(self) -> Visits:
        """Visits of nodes."""
        turns = self.turns
        episode = np.concatenate([turns.episode_N, np.arange(turns.num_episodes)])
        node = np.concatenate([self.source_N, self.target_N[turns.last_N]])
        return Visits.count(episode, node, self.nodes, turns)

    @cached_property
    def uses(self) -> Visits:
        """Uses of edges."""
        return Visits.count(self.turns.episode_N, self.edge_N, len(self.source_M), self.turns)

    def sibling_mean(self, value_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the other edges from an edge's source, float64[M] (0 without any), and whether there are any."""
        siblings_M = np.bincount(self.source_M, minlength=self.nodes)[self.source_M] - 1
        sum_M = np.bincount(self.source_M, value_M, self.nodes)[self.source_M] - value_M
        return np.where(siblings_M > 0, sum_M / np.maximum(siblings_M, 1), 0.0), siblings_M > 0

    def highest(self, value: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Largest value of each task group, at least 0, float64[G]."""
        return largest(value, group, len(self.sink_G))


@dataclass(frozen=True, eq=False)
class Visits:
    """For each node or edge: trajectories that visit it, how many of them succeed, and repeated visits."""

    trajectories: np.ndarray
    successful: np.ndarray
    revisits: np.ndarray

    @classmethod
    def count(cls, episode: np.ndarray, element: np.ndarray, elements: int, turns: Turns) -> Visits:
        once = np.unique(element * turns.num_episodes + episode)
        element_once, episode_once = np.divmod(once, turns.num_episodes)
        every = np.bincount(element_once, minlength=elements)
        successful = np.bincount(element_once, turns.required_success_E[episode_once], elements)
        return cls(every, successful, np.bincount(element, minlength=elements) - every)

    @property
    def failed(self) -> np.ndarray:
        return np.asarray(self.trajectories - self.successful)

    @property
    def success_share(self) -> np.ndarray:
        """Share of successes among the trajectories; 0 without any."""
        return np.asarray(self.successful / np.maximum(self.trajectories, 1))

    @property
    def failure_share(self) -> np.ndarray:
        return np.asarray(self.failed / np.maximum(self.trajectories, 1))


def largest(value: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Largest value of each group, at least 0, float64[groups]."""
    result = np.zeros(groups)
    np.maximum.at(result, group, value)
    return result


def success_rate(turns: Turns) -> np.ndarray:
    """Share of successful episodes in each task group, float64[G]."""
    return group_mean(turns.required_success_E.astype(np.float64), turns.group_index_E, turns.num_groups)


def graph_value(turns: Turns, gamma: float, scope: Scope = "task", bootstrap_truncated: bool = False) -> np.ndarray:
    """Value of each turn's state in the Markov chain that the visits estimate, float64[N].

    ``V(s)`` is the fixed point of "mean over all visits of s of ``r + gamma V(s')``", unique for ``gamma`` < 1, and 0
    after an episode's end.

    scope: the visits of the task group, or of the batch.
    bootstrap_truncated: a truncated episode leads to :func:`cut_state`, not to an end.
    """
    # A sparse solve and no iteration to a fixed point: near gamma = 1 that takes many sweeps.
    from scipy.sparse import coo_array, eye_array
    from scipy.sparse.linalg import spsolve

    state_N = turns.states(scope)
    states = int(state_N.max()) + 1
    visits_S = np.bincount(state_N, minlength=states)
    mean_S = np.bincount(state_N, turns.net_reward_N, states) / visits_S
    continues_N = ~turns.last_N
    target_N = np.append(state_N[1:], 0)
    if bootstrap_truncated:
        continues_N = continues_N | turns.truncated_E[turns.episode_N]
        target_N[turns.last_N] = cut_state(turns, scope)
    source, target = state_N[continues_N], target_N[continues_N]
    ahead = coo_array((gamma / visits_S[source], (source, target)), shape=(states, states))
    value_S = spsolve((eye_array(states) - ahead).tocsc(), mean_S)
    return np.asarray(value_S[state_N])


def cut_state(turns: Turns, scope: Scope = "task") -> np.ndarray:
    """State in which each episode stopped, as :meth:`Turns.states` numbers it, int64[E].

    It is the episode's end state where it is known and an episode acted in it, else the state of the last turn.
    """
    state_N = turns.states(scope)
    last_E = state_N[turns.last_N]
    if turns.end_state_E is None:
        return np.asarray(last_E)
    label = renumber(np.concatenate([turns.required_state_N, turns.end_state_E]))
    if scope == "task":
        label = label + (int(label.max()) + 1) * np.concatenate([turns.group_index_N, turns.group_index_E])
    visited, first_visit = np.unique(label[: turns.num_turns], return_index=True)
    end_label_E = label[turns.num_turns :]
    position_E = np.searchsorted(visited, end_label_E).clip(max=len(visited) - 1)
    return np.where(visited[position_E] == end_label_E, state_N[first_visit[position_E]], last_E)
