"""HGPO: step advantages averaged over groups of increasingly long common history (arXiv 2602.22817).

An equal observation may hide different pasts. Groups with a longer common history compare more alike turns and are
smaller, so the mean over depths trades bias for variance.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.groups import at_mean, normalise
from gagpo.credit.statistics.returns import return_to_go
from gagpo.data import StateKey, Turns, renumber


class Hgpo(CreditSettings):
    """``A = sum w_c A_c / sum w_c`` over context depths c = 0..depth (arXiv 2602.22817).

    ``A_c = (G - mean)/(std + 1e-6)`` of discounted returns, with the population deviation, over the turns of the task
    group whose last c+1 states are equal; depths at which a turn is alone do not count.
    ``w_c = (c + weight_offset)^alpha``. A context of depth c exists from turn c on, as in the released code.

    depth: the longest context.
    weight_offset: 1 in the paper, 2 in the released code.
    norm: ``mean`` does not divide by the deviation (the published WebShop setting).
    drop_zero: leave depths at which the turn's ``A_c`` is 0 out of the weights (the released code).
    """

    level: ClassVar[Level] = "turn"
    name: Literal["hgpo"] = "hgpo"
    state_key: StateKey = "auto"
    gamma: float = Field(default=0.95, ge=0, le=1)
    depth: int = Field(default=2, ge=0)
    alpha: float = Field(default=1.0, ge=0)
    weight_offset: Literal[1, 2] = 1
    norm: Literal["mean_std", "mean"] = "mean_std"
    drop_zero: bool = False

    def advantage(self, turns: Turns) -> np.ndarray:
        return_N = return_to_go(turns.net_reward_N, turns.last_N, self.gamma)
        total_N = np.zeros(turns.num_turns)
        weight_N = np.zeros(turns.num_turns)
        for back, group_N in enumerate(context_groups(turns, self.depth)):
            groups = int(group_N.max()) + 1
            weight = float(back + self.weight_offset) ** self.alpha
            advantage_N = normalise(return_N, group_N, groups, self.norm, ddof=0)
            counts_N = np.bincount(group_N, minlength=groups)[group_N] > 1
            if self.drop_zero:
                counts_N &= ~at_mean(return_N, group_N, groups)
            total_N += weight * counts_N * advantage_N
            weight_N += weight * counts_N
        return np.divide(total_N, weight_N, out=np.zeros(turns.num_turns), where=weight_N > 0)


def context_groups(turns: Turns, depth: int) -> list[np.ndarray]:
    """For c = 0..depth, the groups of turns of one task whose last c+1 states are equal, int64[N] each.

    Turns with fewer than c states before them are alone.
    """
    context_N = state_N = turns.states()
    before = int(state_N.max()) + 1
    contexts = [context_N]
    for back in range(1, depth + 1):
        # Add the state that many turns earlier; before an episode's start, a state of its own.
        inside_N = np.zeros(turns.num_turns, np.bool_)
        inside_N[back:] = turns.episode_N[back:] == turns.episode_N[:-back]
        earlier_N = before + np.arange(turns.num_turns)
        earlier_N[inside_N] = state_N[np.flatnonzero(inside_N) - back]
        context_N = renumber(context_N * (before + turns.num_turns) + earlier_N)
        contexts.append(context_N)
    return contexts
