"""Credit: from rewards to one advantage per turn. Plain arrays in, numpy alone, no trainer needed."""

from gagpo.credit.assign import Credit, advantages, turns_for
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
from gagpo.credit.hgpo import hgpo_advantage
from gagpo.credit.padded import turn_numbers, turns_from_tokens
from gagpo.credit.ppo import ppo_token_advantage, ppo_turn_advantage
from gagpo.credit.reinforce import reinforce_baseline_advantage, reinforce_plus_plus_advantage, token_returns
from gagpo.credit.settings import AnyCredit, CreditSettings
from gagpo.credit.turns import BadTurns, Turns, intern

__all__ = [
    "AnyCredit",
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
    "hgpo_advantage",
    "intern",
    "ppo_token_advantage",
    "ppo_turn_advantage",
    "reinforce_baseline_advantage",
    "reinforce_plus_plus_advantage",
    "return_to_go",
    "rloo_advantage",
    "step_advantage",
    "token_returns",
    "turn_numbers",
    "turns_for",
    "turns_from_tokens",
    "value_proxy",
]
