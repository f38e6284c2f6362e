"""Sums along episodes: returns, differences and generalised advantages, vectorised over flat columns.

The recursion is linear, so all episodes are solved by whole-array operations in place of a loop over turns. The number
of passes grows with the logarithm of the longest episode.
"""

from __future__ import annotations

import numpy as np

BLOCK = 1 << 15
"""Turns that :func:`backward_recursion` solves at once: 256 KB of float64, so that both arrays fit the CPU's cache."""


def backward_recursion(value_N: np.ndarray, carry_N: np.ndarray) -> np.ndarray:
    """Solve ``x_t = value_t + carry_t * x_{t+1}`` with ``x`` after the end 0, float64[N].

    A carry of 0 ends a segment (an episode). All segments are solved at once, in blocks that fit the CPU's cache.
    """
    x_N, carry_N = value_N.astype(np.float64), carry_N.astype(np.float64)
    if not len(x_N):
        return x_N
    carry_N[-1] = 0.0
    # Blocks end where an episode ends, so that no block needs a value of the next one.
    ends = np.flatnonzero(carry_N == 0.0) + 1
    cuts = np.unique(ends[np.searchsorted(ends, np.arange(BLOCK, len(x_N) + BLOCK, BLOCK)).clip(max=len(ends) - 1)])
    for start, stop in zip(np.append(0, cuts[:-1]), cuts, strict=True):
        _solve_backward(x_N[start:stop], carry_N[start:stop])
    return x_N


def _solve_backward(x_N: np.ndarray, carry_N: np.ndarray) -> None:
    """In place. Each pass doubles the number of later turns included: log2(longest segment) passes."""
    step = 1
    while step < len(x_N) and carry_N.any():
        x_N[:-step] += carry_N[:-step] * x_N[step:]
        carry_N[:-step] *= carry_N[step:]
        carry_N[np.abs(carry_N) < 1e-60] = 0.0  # negligible, and denormal numbers are slow
        step *= 2


def return_to_go(reward_N: np.ndarray, last_N: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted return ``G_t = r_t + gamma G_{t+1}`` of each turn within its episode, float64[N]."""
    return backward_recursion(reward_N, np.where(last_N, 0.0, gamma))


def next_in_episode(value_N: np.ndarray, last_N: np.ndarray) -> np.ndarray:
    """The value at the episode's next turn; 0 at its last."""
    next_N = np.zeros(len(value_N))
    next_N[:-1] = value_N[1:]
    next_N[last_N] = 0.0
    return next_N


def temporal_difference(reward_N: np.ndarray, value_N: np.ndarray, next_N: np.ndarray, gamma: float) -> np.ndarray:
    """``r_t + gamma V_{t+1} - V_t``; rounding errors of cancelling terms are exactly 0. next_N: ``V_{t+1}``."""
    ahead_N = gamma * next_N
    delta_N = reward_N + ahead_N - value_N
    size_N = np.abs(reward_N) + np.abs(ahead_N) + np.abs(value_N)
    return np.where(np.abs(delta_N) <= 1e-13 * size_N, 0.0, delta_N)


def generalised_advantage(delta_N: np.ndarray, last_N: np.ndarray, gamma: float, lam: float | np.ndarray) -> np.ndarray:
    """``A_t = delta_t + gamma lam A_{t+1}`` within each episode (arXiv 1506.02438), float64[N].

    lam: a number, or one of each turn.
    """
    return backward_recursion(delta_N, np.where(last_N, 0.0, gamma * lam))
