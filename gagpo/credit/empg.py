"""EMPG: episode advantages scaled by the policy's certainty (arXiv 2509.09265).

It rescales GRPO's advantage by a measurement of the policy, so the trainer scores all tokens before the first step.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from gagpo.credit.episode import Grpo
from gagpo.credit.registry import CreditSettings, Level, PolicyMeasure
from gagpo.credit.statistics.groups import EPSILON
from gagpo.credit.statistics.returns import next_in_episode
from gagpo.data import BadTurns, Turns

BONUS = 0.1
"""Weight of the next turn's clarity."""


class Empg(CreditSettings):
    """``A g(H_t) + .1 f(H_{t+1})``, centred over the batch's turns (arXiv 2509.09265).

    A is GRPO's advantage. H is the mean entropy of a turn's tokens, scaled to [0, 1] over the batch. ``f(H) = exp(-H)``
    and ``g(H) = f(H) / mean f(H)`` over the batch's turns. An episode's last turn has no bonus.
    """

    level: ClassVar[Level] = "turn"
    measure: ClassVar[PolicyMeasure] = "entropy"
    name: Literal["empg"] = "empg"

    def advantage(self, turns: Turns) -> np.ndarray:
        if turns.entropy_N is None:
            raise BadTurns(
                "credit empg needs the policy's entropy",
                key="entropy_N",
                advice="give entropy_N, the mean over each turn's tokens",
            )
        low, high = float(turns.entropy_N.min()), float(turns.entropy_N.max())
        level_N = (turns.entropy_N - low) / (high - low + EPSILON)
        sure_N = np.exp(-level_N)
        ahead_N = next_in_episode(sure_N, turns.last_N)
        advantage_N = Grpo().advantage(turns) * sure_N / sure_N.mean() + BONUS * ahead_N
        return np.asarray(advantage_N - advantage_N.mean())
