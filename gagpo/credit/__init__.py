"""Credit: from rewards to one advantage per turn or token. Takes plain arrays and needs no trainer.

1. :class:`Turns` holds the columns of a batch: rewards, episodes, task groups, states. ``turns/`` computes statistics
   within groups and sums along episodes.
2. A credit is a class derived from :class:`CreditSettings`; its fields are its options. The registry finds it by name.
3. :func:`advantages` computes a :class:`Credit` with its statistics.
"""

from gagpo.credit.assign import Credit, advantages, turns_for
from gagpo.credit.registry import CREDITS, AnyCredit, CreditSettings, Level, register
from gagpo.data import BadTurns, StateKey, Turns, intern, turns_from_tokens

__all__ = [
    "CREDITS",
    "AnyCredit",
    "BadTurns",
    "Credit",
    "CreditSettings",
    "Level",
    "StateKey",
    "Turns",
    "advantages",
    "intern",
    "register",
    "turns_for",
    "turns_from_tokens",
]
