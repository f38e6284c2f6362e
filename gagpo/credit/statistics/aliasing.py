"""Whether a state key identifies states: the same action in the same state leads to the same next state.

Credits that follow states cannot notice a wrong key themselves: they compute, and the advantages are wrong. This number
says it, from the batch alone.
"""

from __future__ import annotations

import math

import numpy as np

from gagpo.credit.statistics.groups import varies
from gagpo.data import Turns, renumber


def aliasing(turns: Turns) -> float:
    """Share of a task group's repeated (state, action) pairs that led to different next states or rewards.

    The last turn of a truncated episode does not count. In a deterministic environment, a Markov state gives 0. NaN
    without states or actions, or where no pair repeats.

    >>> turns = Turns.of([0] * 4, [0, 0, 1, 1], [0, 0], state_N=[0, 1, 0, 2], action_N=[0, 0, 0, 0])
    >>> aliasing(turns)
    1.0
    """
    if turns.state_N is None or turns.action_N is None:
        return math.nan
    state_N = turns.states()
    next_N = np.where(turns.last_N, -1, np.append(state_N[1:], -1))
    observed_N = ~(turns.last_N & turns.truncated_E[turns.episode_N])
    pair_N = renumber(state_N * (int(turns.action_N.max()) + 1) + turns.action_N)[observed_N]
    pairs = int(pair_N.max(initial=0)) + 1
    repeated_P = np.bincount(pair_N, minlength=pairs) > 1
    if not repeated_P.any():
        return math.nan
    outcomes = (next_N[observed_N].astype(np.float64), turns.reward_N[observed_N])
    aliased_P = np.logical_or(*(varies(value, pair_N, pairs) for value in outcomes))
    return float(aliased_P[repeated_P].mean())
