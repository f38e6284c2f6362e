"""The optimal token baseline: returns weighted by the gradient norm of their paths (arXiv 2602.07078).

The baseline with the least variance is no plain mean: paths with large gradients count more. Episodes have different
lengths, so each index has a baseline of its own, over those that reach it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.registry import CreditSettings, Level, PolicyMeasure
from gagpo.credit.reinforce import response_tokens, token_returns
from gagpo.credit.statistics.groups import varies
from gagpo.data import BadTurns, Turns

EPSILON = 1e-8
"""Added to the sum of the weights, as in the authors' code."""


class OptimalTokenBaseline(CreditSettings):
    """``G_k - B_k``, ``B_k = sum W_k G_k / (sum W_k + 1e-8)`` over the task group (arXiv 2602.07078).

    G is the undiscounted return and k the token's index among the episode's response tokens. ``W_k``, the energy of the
    path, is the sum over tokens j up to k of ``1 - 2 pi_j + sum_a pi_j(a)^2``, the squared norm of the gradient by the
    logits. The sums run over episodes with a k-th token; where their returns are equal the advantage is 0.
    """

    level: ClassVar[Level] = "token"
    measure: ClassVar[PolicyMeasure] = "energy"
    name: Literal["optimal_token_baseline"] = "optimal_token_baseline"

    def advantage(self, turns: Turns) -> np.ndarray:
        if turns.energy_K is None:
            raise BadTurns(
                "credit optimal_token_baseline needs the policy's probabilities", key="energy_K", advice="give energy_K"
            )
        tokens_N = response_tokens(turns)
        return_K = token_returns(turns, 1.0)

        # Index of each token in its episode, and the energy up to it.
        tokens_E = np.bincount(turns.episode_N, tokens_N).astype(np.int64)
        episode_K = np.repeat(np.arange(turns.num_episodes), tokens_E)
        first_E = np.cumsum(tokens_E) - tokens_E
        index_K = np.arange(len(return_K)) - first_E[episode_K]
        # One cumulative sum over all episodes, less its value before each: no loop over episodes.
        sum_K = np.cumsum(turns.energy_K)
        weight_K = sum_K - (sum_K - turns.energy_K)[first_E][episode_K]

        # One baseline per task group and index.
        longest = int(tokens_E.max())
        spot_K = turns.group_index_E[episode_K] * longest + index_K
        spots = turns.num_groups * longest
        weighed = np.bincount(spot_K, weight_K * return_K, spots)
        baseline = weighed / (np.bincount(spot_K, weight_K, spots) + EPSILON)
        varies_K = varies(return_K, spot_K, spots)[spot_K]
        return np.where(varies_K, return_K - baseline[spot_K], 0.0)
