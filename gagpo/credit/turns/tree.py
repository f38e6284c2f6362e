"""Groups that are trees: recursions over all that follows a turn, and credit along paths brought back to turns.

A turn that several episodes share stands in the columns once. What follows it is its episode's next turn and the first
own turn of every branch that begins behind it; these are its *children*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gagpo.credit.turns.columns import Turns
from gagpo.credit.turns.grouping import backward_recursion, next_in_episode


def tree_recursion(value_N: np.ndarray, turns: Turns, factor: float) -> np.ndarray:
    """Solve ``x_t = value_t + factor * mean of x over t's children``, x after the end 0, float64[N]."""
    weight_N = np.where(turns.last_N, 0.0, factor)
    if turns.parent_E is not None:
        weight_N = weight_N / children_N(turns)
    return _solve(value_N, weight_N, turns)


def weighted_recursion(value_N: np.ndarray, turns: Turns, weight_N: np.ndarray) -> np.ndarray:
    """Solve ``x_t = value_t + sum of weight_c x_c over t's children c``, float64[N].

    weight_N is each turn's own, as a child; of an episode's first turn without a parent it is not looked at.
    """
    after_N = next_in_episode(weight_N, turns.last_N)
    return _solve(value_N, after_N, turns, weight_N)


def children_N(turns: Turns) -> np.ndarray:
    """How many children a turn has, int64[N]; 1 for an episode's last turn too."""
    count_N = np.ones(turns.turns, np.int64)
    if turns.parent_E is not None:
        count_N += np.bincount(turns.parent_E[turns.parent_E >= 0], minlength=turns.turns)
    return count_N


def mean_of_children(value_N: np.ndarray, turns: Turns) -> np.ndarray:
    """Mean of a value over each turn's children, float64[N]; 0 for an episode's last turn."""
    next_N = next_in_episode(value_N, turns.last_N)
    if turns.parent_E is None:
        return next_N
    branch_E = turns.parent_E >= 0
    np.add.at(next_N, turns.parent_E[branch_E], value_N[turns.first_E[branch_E]])
    return np.asarray(next_N / children_N(turns))


def mean_of_paths(value_E: np.ndarray, turns: Turns) -> np.ndarray:
    """Mean of a value over the episodes that a turn lies on, float64[N]."""
    if turns.parent_E is None:
        return np.asarray(value_E[turns.episode_N])
    one_N = np.ones(turns.turns)
    leaves_N = weighted_recursion(turns.last_N.astype(np.float64), turns, one_N)
    total_N = weighted_recursion(np.where(turns.last_N, value_E[turns.episode_N], 0.0), turns, one_N)
    return np.asarray(total_N / leaves_N)


def tree_E(turns: Turns) -> np.ndarray:
    """The tree of each episode, int64[E]: the number of the try from the start that it descends from."""
    found_E = np.arange(turns.episodes)
    if turns.parent_E is not None:
        for episode in np.flatnonzero(turns.parent_E >= 0):  # a parent stands before its branches
            found_E[episode] = found_E[turns.episode_N[turns.parent_E[episode]]]
    return found_E


def along_paths(turns: Turns, credit: Callable[[Turns, np.ndarray], np.ndarray], tokens: bool = False) -> np.ndarray:
    """``credit`` of whole paths, and the mean over the paths that a turn lies on, float64[N] (``tokens``: float64[K]).

    credit: gets the turns of every path, each episode with all its turns, and where each of its entries (turns, or
    tokens) stands in the columns of ``turns``.
    """
    if turns.parent_E is None:
        return credit(turns, np.arange(int(turns.tokens_N.sum()) if tokens else turns.turns))
    place_P = path_turns(turns)
    length_E = path_lengths(turns)
    text_N = turns.text_N
    columns: dict[str, Any] = {name: getattr(turns, name) for name in _PER_TURN}
    columns = {name: None if column is None else column[place_P] for name, column in columns.items()}
    first_P, tokens_P = (np.cumsum(turns.tokens_N) - turns.tokens_N)[place_P], turns.tokens_N[place_P]
    begins_P = np.cumsum(tokens_P) - tokens_P
    token_P = np.repeat(first_P - begins_P, tokens_P) + np.arange(int(tokens_P.sum()))
    paths = replace(
        turns,
        **columns,
        energy_K=None if turns.energy_K is None else turns.energy_K[token_P],
        episode_N=np.repeat(np.arange(turns.episodes), length_E),
        text_N=None if text_N is None else [text_N[place] for place in place_P],
        parent_E=None,
    )
    place_P = token_P if tokens else place_P
    return np.asarray(np.bincount(place_P, credit(paths, place_P)) / np.bincount(place_P))


_PER_TURN = ("reward_N", "state_N", "penalty_N", "tokens_N", "action_N", "feature_NF", "surprise_N", "entropy_N")


def path_lengths(turns: Turns) -> np.ndarray:
    """How many turns each episode has, shared ones included, int64[E]."""
    return np.asarray(np.rint(turns.path_sum_E(np.ones(turns.turns))), np.int64)


def path_turns(turns: Turns) -> np.ndarray:
    """Where the turns of every episode's path stand, shared ones included, one episode after the other, int64[P]."""
    if turns.parent_E is None:
        return np.arange(turns.turns)
    own_E = np.split(np.arange(turns.turns), turns.first_E[1:])
    path_E: list[np.ndarray] = []
    for own, turn in zip(own_E, turns.parent_E, strict=True):
        if turn >= 0:
            before = path_E[turns.episode_N[turn]]
            own = np.concatenate([before[: int(np.searchsorted(before, turn)) + 1], own])
        path_E.append(own)
    return np.concatenate(path_E)


def _solve(value_N: np.ndarray, carry_N: np.ndarray, turns: Turns, branch_N: np.ndarray | None = None) -> np.ndarray:
    """``x_t = value_t + carry_t x_(t+1) + sum over branches behind t of (branch_b or carry_t) x_b``."""
    if turns.parent_E is None:
        return backward_recursion(value_N, carry_N)
    value_N = value_N.astype(np.float64)
    depth_E = _depths(turns)
    for depth in range(int(depth_E.max()), 0, -1):
        # What lies behind the branches of this depth is known: it is paid to the turns that they begin behind.
        x_N = backward_recursion(value_N, carry_N)
        branches = np.flatnonzero(depth_E == depth)
        parent, first = turns.parent_E[branches], turns.first_E[branches]
        np.add.at(value_N, parent, (carry_N[parent] if branch_N is None else branch_N[first]) * x_N[first])
    return backward_recursion(value_N, carry_N)


def _depths(turns: Turns) -> np.ndarray:
    """How many forks lie before each episode's own turns, int64[E]."""
    assert turns.parent_E is not None
    depth_E = np.zeros(turns.episodes, np.int64)
    for episode in np.flatnonzero(turns.parent_E >= 0):
        depth_E[episode] = depth_E[turns.episode_N[turns.parent_E[episode]]] + 1
    return depth_E
