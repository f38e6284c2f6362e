"""A sum of credits, each divided by its standard deviation."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.registry import AnyCredit, CreditSettings, Level
from gagpo.credit.turns import StateKey, Turns


class WeightedSum(CreditSettings):
    """The sum of ``A/std(A)`` over ``credits``, with the deviation over all turns of the batch.

    credits: turn-level or episode-level credits without a critic. The default is GraphGPO's step term and the TD error
        of GAGPO's graph value. A credit without deviation adds 0.
    key: state key of all credits.

    >>> turns = Turns([1, 0, 0], [0, 1, 1], [0, 0])
    >>> WeightedSum(credits=["grpo", "dr_grpo"]).advantage(turns).round(3).tolist()
    [2.121, -2.121, -2.121]
    """

    level: ClassVar[Level] = "turn"
    name: Literal["weighted_sum"] = "weighted_sum"
    key: StateKey = "auto"
    credits: list[AnyCredit] = Field(
        default_factory=lambda: [Graphgpo(episode_weight=0.0), Gagpo(proxy="graph", lam=0.0)], min_length=1
    )

    @model_validator(mode="after")
    def _summable(self) -> WeightedSum:
        for credit in self.credits:
            if credit.critic or credit.level == "token":
                what = "needs a critic" if credit.critic else "is token-level"
                raise InvalidArgument(f"credit weighted_sum cannot add {credit.name}, which {what}: leave it out")
            key = getattr(credit, "key", self.key)
            if key != self.key and "key" in credit.model_fields_set:
                raise InvalidArgument(f"all credits of a sum share one key: set key={key} next to credits, not in them")
        keyed = [
            credit.model_copy(update={"key": self.key}) if hasattr(credit, "key") else credit for credit in self.credits
        ]
        object.__setattr__(self, "credits", keyed)  # options are frozen once made
        return self

    @property
    def follows_states(self) -> bool:
        return any(credit.follows_states for credit in self.credits)

    def advantage(self, turns: Turns) -> np.ndarray:
        total_N = np.zeros(turns.turns)
        for credit in self.credits:
            advantage_N = credit.advantage(turns)
            deviation = advantage_N.std()
            if deviation > 1e-12 * np.abs(advantage_N).max():  # more than a rounding error
                total_N += advantage_N / deviation
        return total_N
