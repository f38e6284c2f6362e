"""Credit: from rewards to one advantage per turn. Plain arrays in, numpy alone, no trainer needed."""

from gagpo.credit.assign import Credit, advantages
from gagpo.credit.episode import (
    agpo_adaptive_advantage,
    agpo_asymmetric_advantage,
    dr_grpo_advantage,
    grpo_advantage,
    rloo_advantage,
)
from gagpo.credit.gagpo import gagpo_advantage, value_proxy
from gagpo.credit.gigpo import gigpo_advantage, step_advantage
from gagpo.credit.grouping import return_to_go
from gagpo.credit.settings import CreditSettings
from gagpo.credit.turns import BadTurns, Turns, intern

__all__ = [
    "BadTurns",
    "Credit",
    "CreditSettings",
    "Turns",
    "advantages",
    "agpo_adaptive_advantage",
    "agpo_asymmetric_advantage",
    "dr_grpo_advantage",
    "gagpo_advantage",
    "gigpo_advantage",
    "grpo_advantage",
    "intern",
    "return_to_go",
    "rloo_advantage",
    "step_advantage",
    "value_proxy",
]
