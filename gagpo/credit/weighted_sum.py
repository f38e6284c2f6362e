"""A sum of credits, each divided by its standard deviation.

Credits have different units, so a plain sum would follow the largest. Each is divided by its deviation, which a credit
without contrast does not have: it adds nothing, and its rounding errors must not be scaled up.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.registry import AnyCredit, CreditSettings, Level
from gagpo.data import StateKey, Turns


class WeightedSum(CreditSettings):
    """``sum of weight * A/std(A)`` over ``credits``, with the deviation over all turns of the batch.

    The default is ``A_G/std(A_G) + A_V/std(A_V)``: ``A_G`` is GraphGPO's step term, ``A_V`` the TD error of graph
    value, normalised over the task group. A term without deviation adds 0.

    state_key: definition of a state, for all credits.
    credits: names or options of credits that give one advantage per episode or turn, from the episodes alone.
    weights: one for each credit; None for 1 each.
    unit: ``none`` adds the credits without dividing them.

    >>> turns = Turns.of([1, 0, 0], [0, 1, 1], [0, 0])
    >>> WeightedSum(credits=["grpo", "dr_grpo"], weights=[1.0, 0.5]).advantage(turns).round(3).tolist()
    [1.591, -1.591, -1.591]
    """

    level: ClassVar[Level] = "turn"
    name: Literal["weighted_sum"] = "weighted_sum"
    state_key: StateKey = "auto"
    credits: list[AnyCredit] = Field(
        default_factory=lambda: [Graphgpo(episode_weight=0.0), Gagpo(proxy="graph", lam=0.0)], min_length=1
    )
    weights: list[float] | None = None
    unit: Literal["deviation", "none"] = "deviation"

    @model_validator(mode="after")
    def _summable(self) -> WeightedSum:
        for credit in self.credits:
            reason = self._why_not(credit)
            if reason:
                raise InvalidArgument(f"credits: {credit.name} {reason}", key="credits")
        if self.weights is not None and len(self.weights) != len(self.credits):
            raise InvalidArgument(
                f"weights must have one number for each of the {len(self.credits)} credits (got {len(self.weights)})",
                key="weights",
            )
        keyed = [
            credit.model_copy(update={"state_key": self.state_key}) if hasattr(credit, "state_key") else credit
            for credit in self.credits
        ]
        object.__setattr__(self, "credits", keyed)  # options are frozen
        return self

    def _why_not(self, credit: CreditSettings) -> str:
        """Why a credit cannot be a term of the sum; '' if it can."""
        if credit.critic:
            return "requires a critic, and a sum has none: leave it out"
        if credit.level == "token":
            return "has one advantage per token, and a sum has one per turn: leave it out"
        if credit.measure:
            return f"requires the policy's {credit.measure}, which is not measured for a sum: leave it out"
        if "state_key" in credit.model_fields_set and getattr(credit, "state_key", self.state_key) != self.state_key:
            state_key = getattr(credit, "state_key", "")
            return f"has a separate state_key, and a sum has one for all: set credit.state_key={state_key} instead"
        return ""

    @property
    def follows_states(self) -> bool:
        return any(credit.follows_states for credit in self.credits)

    @property
    def reads_texts(self) -> bool:
        return any(credit.reads_texts for credit in self.credits)

    def advantage(self, turns: Turns) -> np.ndarray:
        total_N = np.zeros(turns.num_turns)
        for credit, weight in zip(self.credits, self.weights or [1.0] * len(self.credits), strict=True):
            advantage_N = credit.advantage(turns)
            deviation = advantage_N.std() if self.unit == "deviation" else 1.0
            if deviation > 1e-12 * np.abs(advantage_N).max():  # more than a rounding error
                total_N += weight * advantage_N / deviation
        return total_N
