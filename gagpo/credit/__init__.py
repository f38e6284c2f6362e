"""Credit: from rewards to one advantage per turn. Plain arrays in, numpy alone, no trainer needed."""

from gagpo.credit.agpo import agpo_adaptive_advantage, agpo_asymmetric_advantage
from gagpo.credit.assign import Credit, advantages, give_credit, turns_for
from gagpo.credit.episode import dr_grpo_advantage, grpo_advantage, rloo_advantage
from gagpo.credit.gagpo import gagpo_advantage, value_proxy
from gagpo.credit.gigpo import gigpo_advantage, step_advantage
from gagpo.credit.graphgpo import graphgpo_advantage
from gagpo.credit.hgpo import hgpo_advantage
from gagpo.credit.milegpo import milegpo_advantage
from gagpo.credit.ppo import ppo_token_advantage, ppo_turn_advantage
from gagpo.credit.registry import AnyCredit, CreditSettings, Level, find, names, register
from gagpo.credit.reinforce import reinforce_baseline_advantage, reinforce_plus_plus_advantage, token_returns
from gagpo.credit.turns import BadTurns, Turns, intern
from gagpo.credit.turns.columns import StateKey
from gagpo.credit.turns.grouping import return_to_go
from gagpo.credit.turns.padded import turn_numbers, turns_from_tokens

__all__ = [
    "AnyCredit",
    "BadTurns",
    "Credit",
    "CreditSettings",
    "Turns",
    "Level",
    "StateKey",
    "advantages",
    "agpo_adaptive_advantage",
    "agpo_asymmetric_advantage",
    "dr_grpo_advantage",
    "find",
    "gagpo_advantage",
    "gigpo_advantage",
    "give_credit",
    "graphgpo_advantage",
    "grpo_advantage",
    "hgpo_advantage",
    "intern",
    "milegpo_advantage",
    "names",
    "ppo_token_advantage",
    "ppo_turn_advantage",
    "register",
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
