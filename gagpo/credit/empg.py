"""EMPG: an episode's advantage, larger where the policy was sure, and a bonus for clarity to come (2509.09265)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level, Measure
from gagpo.credit.turns import BadTurns, Turns
from gagpo.credit.turns.grouping import EPSILON, next_in_episode

BONUS = 0.1
"""Weight of the next turn's clarity."""


class Empg(CreditSettings):
    """``A g(H_t) + .1 f(H_{t+1})``, less its mean over the batch's turns (arXiv 2509.09265).

    A is GRPO's. H is the mean entropy of a turn's tokens, brought to [0, 1] by the least and the largest of the batch.
    ``f(H) = exp(-H)`` and ``g(H) = f(H) / mean f(H)``, the mean over the batch's turns, so that g is 1 on average. An
    episode's last turn has no next one and no bonus. Equal entropies give g = 1.
    """

    level: ClassVar[Level] = "turn"
    measure: ClassVar[Measure] = "entropy"
    name: Literal["empg"] = "empg"

    def advantage(self, turns: Turns) -> np.ndarray:
        if turns.entropy_N is None:
            raise BadTurns("EMPG reads the policy's entropy: give entropy_N, the mean over each turn's tokens")
        low, high = float(turns.entropy_N.min()), float(turns.entropy_N.max())
        level_N = (turns.entropy_N - low) / (high - low + EPSILON)
        sure_N = np.exp(-level_N)
        ahead_N = next_in_episode(sure_N, turns.last_N)
        advantage_N = Grpo().advantage(turns) * sure_N / sure_N.mean() + BONUS * ahead_N
        return np.asarray(advantage_N - advantage_N.mean())
