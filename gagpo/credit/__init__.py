"""Credit: from rewards to one advantage per turn. Plain arrays in, numpy alone, no trainer needed.

1. :class:`Turns` are the columns of a batch: rewards, episodes, task groups, states (``turns/`` has what is computed
   within groups and along episodes).
2. A credit is a class with its options, :class:`CreditSettings`, one file each; the registry finds it by name.
3. :func:`advantages` computes it and says how much there is to learn from; :func:`give_credit` does so with a critic's
   value of every response token. Both give a :class:`Credit`.

Each credit is a function as well, loaded when it is asked for: ``gagpo_advantage(turns, lam=0.9)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gagpo.credit.assign import Credit, advantages, give_credit, turns_for
from gagpo.credit.gagpo import value_proxy
from gagpo.credit.gigpo import step_advantage
from gagpo.credit.ppo import ppo_token_advantage, ppo_turn_advantage
from gagpo.credit.registry import CREDITS, AnyCredit, CreditSettings, Level, find, function_of, names, register
from gagpo.credit.reinforce import token_returns
from gagpo.credit.turns import BadTurns, StateKey, Turns, intern
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
    "find",
    "give_credit",
    "intern",
    "names",
    "ppo_token_advantage",
    "ppo_turn_advantage",
    "register",
    "return_to_go",
    "step_advantage",
    "token_returns",
    "turn_numbers",
    "turns_for",
    "turns_from_tokens",
    "value_proxy",
]


def __getattr__(name: str) -> Callable[..., np.ndarray]:
    credit, _, rest = name.rpartition("_advantage")
    if rest or credit not in CREDITS.ours:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function_of(credit)
