"""GAGPO: temporal-difference credit on a value proxy that the task group itself provides (arXiv 2605.13217)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gagpo.credit.episode import grpo_advantage
from gagpo.credit.grouping import (
    EPSILON,
    Norm,
    generalised_advantage,
    group_std,
    next_in_episode,
    return_to_go,
    standardise,
    temporal_difference,
)
from gagpo.credit.turns import Turns
from gagpo.envs.errors import InvalidArgument

Proxy = Literal["return", "outcome"]


def value_proxy(
    turns: Turns,
    gamma: float = 0.95,
    scope: Literal["task", "batch"] = "task",
    leave_one_out: bool = False,
    proxy: Proxy = "return",
) -> np.ndarray:
    """``V(s_{i,t})``: mean over all visits of the state, float64[N].

    Averaged is the discounted return-to-go ``G`` (``proxy="return"``) or the episode's undiscounted net return
    (``proxy="outcome"``). With ``leave_one_out`` a turn's own visit is left out of its mean; a state visited once then
    keeps its own value, so that it gives no advantage in either way.
    """
    state_N = turns.states(scope)
    states = int(state_N.max()) + 1
    if proxy == "return":
        visit_N = return_to_go(turns.net_reward_N, turns.last_N, gamma)
    else:
        visit_N = turns.return_E[turns.episode_N]
    size_N = np.bincount(state_N, minlength=states)[state_N]
    total_N = np.bincount(state_N, visit_N, states)[state_N]
    if not leave_one_out:
        return np.where(size_N > 1, total_N / size_N, visit_N)
    return np.where(size_N > 1, (total_N - visit_N) / np.maximum(size_N - 1, 1), visit_N)


def gagpo_advantage(
    turns: Turns,
    gamma: float = 0.95,
    lam: float = 0.8,
    scope: Literal["task", "batch"] = "task",
    leave_one_out: bool = False,
    bootstrap_truncated: bool = False,
    proxy: Proxy = "return",
    norm: Norm = "group",
    trajectory_weight: float = 0.0,
    epsilon: float = EPSILON,
) -> np.ndarray:
    """GAGPO's advantage of each turn, float64[N] (arXiv 2605.13217).

    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, ``A_t = delta_t + gamma lam A_{t+1}``, then normalised over all turns
    of the task group: ``(A - mean)/(std + epsilon)`` with the sample standard deviation.

    lam: 0 is the one-step error, 1 is Monte-Carlo, ``G - V(s)``. scope: where equal state ids are the same state.
    bootstrap_truncated: value an episode that was cut off by its last state's proxy instead of 0; the state it was cut
    off in is never acted in, so it has none of its own. norm: ``group``; ``batch`` (all turns); ``state`` (the state
    group); ``scale_only`` (by the group's deviation, mean kept); ``none``. A normalised group without variance is 0.
    trajectory_weight: adds that much of GRPO's episode advantage (the paper finds that it hurts).

    >>> turns = Turns([0, 0, 10, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0], state_N=[0, 1, 2, 0, 1, 3])
    >>> gagpo_advantage(turns, lam=0.0, norm="none").round(4).tolist()
    [0.0, 4.75, 0.0, 0.0, -4.75, 0.0]
    """
    value_N = value_proxy(turns, gamma, scope, leave_one_out, proxy)
    next_value_N = next_in_episode(value_N, turns.last_N)
    if bootstrap_truncated:
        cut_N = turns.last_N & turns.truncated_E[turns.episode_N]
        next_value_N = np.where(cut_N, value_N, next_value_N)
    delta_N = temporal_difference(turns.net_reward_N, value_N, next_value_N, gamma)
    advantage_N = generalised_advantage(delta_N, turns.last_N, gamma, lam)
    advantage_N = normalise(advantage_N, turns, norm, scope, epsilon)
    if trajectory_weight:
        advantage_N = advantage_N + trajectory_weight * grpo_advantage(turns)
    return advantage_N


def normalise(
    advantage_N: np.ndarray,
    turns: Turns,
    norm: Norm,
    scope: Literal["task", "batch"] = "task",
    epsilon: float = EPSILON,
) -> np.ndarray:
    """Advantages of turns normalised over ``norm``'s groups; see :func:`gagpo_advantage`."""
    if norm == "none":
        return advantage_N
    if norm == "batch":
        return standardise(advantage_N, np.zeros(turns.turns, np.int64), 1, epsilon=epsilon)
    if norm == "state":
        state_N = turns.states(scope)
        return standardise(advantage_N, state_N, int(state_N.max()) + 1, epsilon=epsilon)
    if norm == "group":
        return standardise(advantage_N, turns.group_index_N, turns.groups, epsilon=epsilon)
    if norm == "scale_only":
        std_N = group_std(advantage_N, turns.group_index_N, turns.groups)[turns.group_index_N]
        return np.where(std_N > 0, advantage_N / (std_N + epsilon), 0.0)
    raise InvalidArgument(f"unknown norm {norm!r}; choose group, batch, state, scale_only or none")
