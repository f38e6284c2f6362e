"""EMPG: an episode's advantage, larger where the policy was sure, and a bonus for clarity to come (2509.09265)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level, Measure
from gagpo.credit.turns import BadTurns, Turns
from gagpo.credit.turns.grouping import EPSILON, next_in_episode


class Empg(CreditSettings):
    """``A g(H_t) + zeta f(H_{t+1})``, less its mean over the batch's turns (arXiv 2509.09265).

    A is GRPO's. H is the mean entropy of a turn's tokens, brought to [0, 1] by the least and the largest of the batch;
    ``g(H) = exp(-k H) / mean exp(-k H)``, the mean over the batch's turns, so that it is 1 on average; ``f(H) =
    exp(-future_k H)``. An episode's last turn has no next one and no bonus. Equal entropies give g = 1.
    """

    level: ClassVar[Level] = "turn"
    measure: ClassVar[Measure] = "entropy"
    name: Literal["empg"] = "empg"
    k: float = Field(default=1.0, ge=0)
    future_k: float = Field(default=1.0, ge=0)
    zeta: float = Field(default=0.1, ge=0)

    def advantage(self, turns: Turns) -> np.ndarray:
        if turns.entropy_N is None:
            raise BadTurns("EMPG reads the policy's entropy: give entropy_N, the mean over each turn's tokens")
        low, high = float(turns.entropy_N.min()), float(turns.entropy_N.max())
        level_N = (turns.entropy_N - low) / (high - low + EPSILON)
        sure_N = np.exp(-self.k * level_N)
        ahead_N = next_in_episode(np.exp(-self.future_k * level_N), turns.last_N)
        advantage_N = Grpo().advantage(turns) * sure_N / sure_N.mean() + self.zeta * ahead_N
        return np.asarray(advantage_N - advantage_N.mean())
