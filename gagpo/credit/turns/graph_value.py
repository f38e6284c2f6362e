"""The value of states on a task group's merged graph, in which episodes that meet in a state share what comes after."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.turns.columns import Turns, renumber

EXACT = 1e-10
"""How far the value of any state may be from the fixed point, relative to the largest."""


def graph_value(
    turns: Turns, gamma: float, scope: Literal["task", "batch"] = "task", bootstrap_truncated: bool = False
) -> np.ndarray:
    """``V(s)``, the fixed point of "mean over all visits of s of ``r + gamma V(s')``", of each turn, float64[N].

    It is the value of the Markov chain that the group's visits estimate: the result of an action is valued by all
    episodes that passed there, not only by its own. Cycles and self-loops are edges like others. The value is 0 beyond
    an end. With ``bootstrap_truncated`` the state in which an episode was cut off has its own value where the group
    acted in it, and that of the last state elsewhere. ``gamma`` is below 1, which makes the fixed point unique.
    """
    from scipy.sparse import coo_array, eye_array
    from scipy.sparse.linalg import spsolve

    state_N = turns.states(scope)
    states = int(state_N.max()) + 1
    target_N = next_state(turns, state_N, states, scope, bootstrap_truncated)
    visits_S = np.bincount(state_N, minlength=states)
    mean_S = np.bincount(state_N, turns.net_reward_N, states) / visits_S
    goes_N = target_N < states  # nothing follows an end
    source, target = state_N[goes_N], target_N[goes_N]
    ahead = coo_array((gamma / visits_S[source], (source, target)), shape=(states, states))
    value_S = spsolve((eye_array(states) - ahead).tocsc(), mean_S)
    return np.asarray(value_S[state_N])


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
