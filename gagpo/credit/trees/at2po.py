"""AT2PO: a turn's advantage is its value, gathered from the outcomes behind it (arXiv 2601.04767)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import BadTurns
from gagpo.credit.turns.columns import Coding, Turns
from gagpo.credit.turns.grouping import standardise
from gagpo.credit.turns.tree import children_N, weighted_recursion


class At2po(CreditSettings):
    """``A_t = V_t``: at an episode's last turn ``(R - mean)/(std + 1e-6)`` over its task group, before it a mean of its
    children's values (arXiv 2601.04767).

    children: weighed alike (``mean``), or by ``exp(h)`` with ``h`` a child's mean negative log-probability per token
    (``softmax``, as the released recipe runs it). reward: as in :class:`gagpo.credit.episode.Grpo`.

    >>> turns = Turns([0, 1, 0, 0], [0, 0, 1, 2], [0, 0, 0], parent_E=[-1, 0, -1])
    >>> At2po(children="mean").advantage(turns).round(3).tolist()
    [0.289, 1.155, -0.577, -0.577]
    """

    level: ClassVar[Level] = "turn"
    takes_trees: ClassVar[bool] = True
    surprise: ClassVar[bool] = True
    name: Literal["at2po"] = "at2po"
    reward: Coding = "sum"
    children: Literal["softmax", "mean"] = "softmax"

    def advantage(self, turns: Turns) -> np.ndarray:
        outcome_E = standardise(turns.coded_return_E(self.reward), turns.group_index_E, turns.groups)
        return weighted_recursion(np.where(turns.last_N, outcome_E[turns.episode_N], 0.0), turns, self._weights(turns))

    def _weights(self, turns: Turns) -> np.ndarray:
        """Of each turn among the children of the one before it, float64[N]; 1 for an only child."""
        # An episode's first turn is a child of where it branches; any other of the turn before it.
        parent_N = np.arange(turns.turns) - 1
        parent_N[turns.first_E] = -1 if turns.parent_E is None else turns.parent_E
        child_N = parent_N >= 0
        if turns.parent_E is None:
            return np.ones(turns.turns)
        if self.children == "mean":
            return np.where(child_N, 1 / children_N(turns)[parent_N], 1.0)
        if turns.surprise_N is None:
            raise BadTurns("this credit weighs turns by how unlikely they were: give surprise_N")
        weight_N = np.exp(turns.surprise_N)
        total_N = np.bincount(parent_N[child_N], weight_N[child_N], turns.turns)
        return np.where(child_N, weight_N / np.where(child_N, total_N[parent_N], 1.0), 1.0)
