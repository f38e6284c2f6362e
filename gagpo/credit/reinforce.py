"""REINFORCE++ and its baseline variant: returns whitened over the batch (arXiv 2501.03262).

Whitening over the batch is the only baseline, so groups may have one episode. Tasks of unequal difficulty then share a
mean; the variant with a group baseline subtracts the task's own first.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.statistics.groups import centre, varies
from gagpo.credit.statistics.returns import backward_recursion
from gagpo.data import BadTurns, Turns


class ReinforcePlusPlus(CreditSettings):
    """REINFORCE++: :func:`token_returns` whitened over the batch's tokens (arXiv 2501.03262)."""

    level: ClassVar[Level] = "token"
    name: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(default=1.0, ge=0, le=1)

    def advantage(self, turns: Turns) -> np.ndarray:
        return whiten(token_returns(turns, self.gamma))


class ReinforceBaseline(CreditSettings):
    """REINFORCE++-baseline: ``R - group mean``, whitened over the batch's tokens (arXiv 2501.03262)."""

    name: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"

    def advantage(self, turns: Turns) -> np.ndarray:
        centred_E = centre(turns.return_E, turns.group_index_E, turns.num_groups)
        return whiten(centred_E[turns.episode_N], response_tokens(turns))


def whiten(value: np.ndarray, weight: np.ndarray | None = None, epsilon: float = 1e-8) -> np.ndarray:
    """``(x - mean)/sqrt(var + epsilon)`` with the sample variance; exactly 0 where the values do not vary.

    weight: number of times that each value counts (the tokens of a turn).
    """
    weight = np.ones(len(value)) if weight is None else weight
    total = weight.sum()
    if total == 0 or not varies(value, np.zeros(len(value), np.int64), 1)[0]:
        return np.zeros(len(value))
    centred = value - (weight * value).sum() / total
    return np.asarray(centred / np.sqrt((weight * centred * centred).sum() / max(total - 1, 1) + epsilon))


def token_returns(turns: Turns, gamma: float) -> np.ndarray:
    """Discounted return of each response token, float64[K]; discounting counts response tokens alone.

    A turn's reward is paid at its last token, where the return is ``R_t = r_t + gamma^(tokens of turn t+1) R_{t+1}``.
    """
    tokens_N = response_tokens(turns)
    next_tokens_N = np.append(tokens_N[1:], 0)
    carry_N = np.where(turns.last_N, 0.0, np.power(gamma, next_tokens_N))
    return_N = backward_recursion(turns.net_reward_N, carry_N)
    return_K = np.repeat(return_N, tokens_N)
    if gamma == 1.0:
        return return_K
    # Tokens of the same turn that follow: the recursion above runs over turns, which are far fewer than tokens.
    to_come_K = np.repeat(np.cumsum(tokens_N), tokens_N) - 1 - np.arange(len(return_K))
    return np.asarray(return_K * np.power(gamma, to_come_K))


def response_tokens(turns: Turns) -> np.ndarray:
    """``tokens_N``; raises :class:`BadTurns` where a turn has no token to pay its reward at or to read a value at."""
    empty = np.flatnonzero(turns.tokens_N == 0)
    if empty.size:
        raise BadTurns("this credit requires a response token in each turn", advice=f"turn {empty[0]} has none")
    return turns.tokens_N
