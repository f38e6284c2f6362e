"""The sum of GraphGPO's step term and graph value, each divided by its standard deviation."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.gagpo import Gagpo
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.registry import CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns


class WeightedSum(CreditSettings):
    """``A_G/std(A_G) + A_V/std(A_V)``, with the deviations over all turns of the batch.

    ``A_G`` is GraphGPO's step term, ``A_V`` the TD error of graph value, normalised over the task group. A term without
    deviation adds 0.
    """

    level: ClassVar[Level] = "turn"
    name: Literal["weighted_sum"] = "weighted_sum"
    key: StateKey = "auto"

    @property
    def follows_states(self) -> bool:
        return True

    def advantage(self, turns: Turns) -> np.ndarray:
        total_N = np.zeros(turns.turns)
        for credit in (Graphgpo(episode_weight=0.0), Gagpo(proxy="graph", lam=0.0)):
            advantage_N = credit.advantage(turns)
            deviation = advantage_N.std()
            if deviation > 1e-12 * np.abs(advantage_N).max():  # more than a rounding error
                total_N += advantage_N / deviation
        return total_N
