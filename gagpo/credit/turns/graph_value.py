"""The value of states on a task group's merged graph, in which episodes that meet in a state share what comes after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from gagpo.credit.turns.columns import Turns, renumber

EXACT = 1e-10
"""How far the value of any state may be from the fixed point, relative to the largest."""


ROUNDING = 1e-14
"""Differences below it, relative to the values, are those of float64."""

MOST_STEPS = 200


def graph_value(
    turns: Turns, gamma: float, scope: Literal["task", "batch"] = "task", bootstrap_truncated: bool = False
) -> np.ndarray:
    """``V(s)``, the fixed point of "mean over all visits of s of ``r + gamma V(s')``", of each turn, float64[N].

    It is the value of the Markov chain that the group's visits estimate: what an action led to is valued by all
    episodes that passed there, not by its own alone. Cycles and self-loops are edges like others. 0 beyond an end; with
    ``bootstrap_truncated`` the state in which an episode was cut off has its value where the group acted in it, and the
    last state's elsewhere. ``gamma`` is below 1, which makes the fixed point the only one.

    A state that stays itself is solved for its own value; the rest is a sparse linear system over the merged edges.
    """
    state_N = turns.states(scope)
    states = int(state_N.max()) + 1
    target_N = next_state(turns, state_N, states, scope, bootstrap_truncated)
    visits_S = np.bincount(state_N, minlength=states)
    mean_S = np.bincount(state_N, turns.net_reward_N, states) / visits_S

    # Parallel transitions are one edge with a weight; nothing follows a transition to the place after the last state.
    edge_M, uses_M = np.unique(state_N * (states + 1) + target_N, return_counts=True)
    source_M, target_M = np.divmod(edge_M, states + 1)
    weight_M = gamma * uses_M / visits_S[source_M]
    stays_M = source_M == target_M
    leaves_S = 1.0 - np.bincount(source_M, weight_M * stays_M, states)
    mean_S = mean_S / leaves_S
    goes_M = ~stays_M & (target_M < states)
    source_M, target_M = source_M[goes_M], target_M[goes_M]
    weight_M = weight_M[goes_M] / leaves_S[source_M]

    def swept(value_S: np.ndarray) -> np.ndarray:
        return np.asarray(np.bincount(source_M, weight_M * value_S[target_M], states))

    allowed = max(EXACT * (1.0 - gamma), ROUNDING) * np.abs(mean_S).max()
    value_S, error = _nearly_solved(swept, mean_S, allowed), np.inf
    while error * gamma > allowed:
        after_S = mean_S + swept(value_S)
        error = np.abs(after_S - value_S).max()
        value_S = after_S
    return np.asarray(value_S[state_N])


def _nearly_solved(swept: Callable[[np.ndarray], np.ndarray], mean_S: np.ndarray, allowed: float) -> np.ndarray:
    """``V = mean + swept(V)`` by van der Vorst's BiCGSTAB (1992), which needs few sweeps and may break down.

    What it comes to is where plain sweeps begin: those always end, and say how far off the value still is.
    """
    value_S, direction_S = mean_S, swept(mean_S)
    rest_S = shadow_S = direction_S
    product = shadow_S @ rest_S
    for _ in range(MOST_STEPS):
        if np.abs(rest_S).max() <= allowed:
            break
        # Along the direction as far as the shadow says, then along what is left as far as shortens it most.
        image_S = direction_S - swept(direction_S)
        along = shadow_S @ image_S
        if along == 0 or product == 0:
            break
        step = product / along
        left_S = rest_S - step * image_S
        left_image_S = left_S - swept(left_S)
        length = left_image_S @ left_image_S
        more = (left_image_S @ left_S) / length if length else 0.0
        value_S = value_S + step * direction_S + more * left_S
        rest_S = left_S - more * left_image_S
        product, before = shadow_S @ rest_S, product
        if more == 0 or not np.isfinite(product):
            break
        direction_S = rest_S + product / before * step / more * (direction_S - more * image_S)
    return value_S if np.isfinite(value_S).all() else mean_S


def next_state(
    turns: Turns,
    state_N: np.ndarray,
    states: int,
    scope: Literal["task", "batch"] = "task",
    bootstrap_truncated: bool = False,
) -> np.ndarray:
    """State group that each turn leads to, int64[N]; ``states`` after an episode's last turn, where nothing follows.

    bootstrap_truncated: see :func:`graph_value`.
    """
    target_N = np.append(state_N[1:], states)
    target_N[turns.last_N] = states
    if bootstrap_truncated:
        after_E = np.where(turns.truncated_E, _end_state(turns, state_N, scope), states)
        target_N[turns.last_N] = after_E
    return np.asarray(target_N)


def _end_state(turns: Turns, state_N: np.ndarray, scope: Literal["task", "batch"]) -> np.ndarray:
    """State group that each episode ended in, int64[E]; that of its last turn where nobody acted in its end."""
    last_E: np.ndarray = state_N[turns.last_N]
    if turns.end_state_E is None or turns.state_N is None:
        return last_E
    label = renumber(np.concatenate([turns.state_N, turns.end_state_E]))
    if scope == "task":
        label = label + (int(label.max()) + 1) * np.concatenate([turns.group_index_N, turns.group_index_E])
    known, visit = np.unique(label[: turns.turns], return_index=True)
    place_E = np.searchsorted(known, label[turns.turns :]).clip(max=len(known) - 1)
    met_E = known[place_E] == label[turns.turns :]
    return np.where(met_E, state_N[visit[place_E]], last_E)
