"""Is a state key a state? Where it is, the same action in the same state leads to the same place."""

from __future__ import annotations

import math

import numpy as np

from gagpo.credit.turns.columns import Turns, renumber
from gagpo.credit.turns.grouping import varies


def aliasing(turns: Turns) -> float:
    """Share of the repeated pairs of state and action, within a task group, that came to different things.

    Those are the next state and the turn's reward; where an episode was cut off nothing is known of either. In an
    environment without chance it is 0 for a key that is a Markov state; in one with chance it counts that too. NaN
    where states or actions are not given, or no pair repeats.

    >>> turns = Turns([0] * 4, [0, 0, 1, 1], [0, 0], state_N=[0, 1, 0, 2], action_N=[0, 0, 0, 0])
    >>> aliasing(turns)  # the first state is left by the same action for two others
    1.0
    """
    if turns.state_N is None or turns.action_N is None:
        return math.nan
    state_N = turns.states()
    next_N = np.where(turns.last_N, -1, np.append(state_N[1:], -1))
    told_N = ~(turns.last_N & turns.truncated_E[turns.episode_N])
    pair_N = renumber(state_N * (int(turns.action_N.max()) + 1) + turns.action_N)[told_N]
    pairs = int(pair_N.max(initial=0)) + 1
    repeated_P = np.bincount(pair_N, minlength=pairs) > 1
    if not repeated_P.any():
        return math.nan
    came_to = (next_N[told_N].astype(np.float64), turns.reward_N[told_N])
    aliased_P = np.logical_or(*(varies(value, pair_N, pairs) for value in came_to))
    return float(aliased_P[repeated_P].mean())
