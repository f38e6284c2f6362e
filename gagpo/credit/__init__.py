"""Credit: from rewards to one advantage per turn or token. Takes plain arrays and needs no trainer.

1. :class:`Turns` holds the columns of a batch: rewards, episodes, task groups, states. ``turns/`` computes statistics
   within groups and sums along episodes.
2. A credit is a class derived from :class:`CreditSettings`; its fields are its options. The registry finds it by name.
3. :func:`advantages` computes a :class:`Credit` with its statistics; :func:`give_credit` does so with a critic's value
   of each response token.
"""

from gagpo.credit.assign import Credit, advantages, give_credit, turns_for
from gagpo.credit.registry import AnyCredit, CreditSettings, Level, find, names, register
from gagpo.credit.turns import BadTurns, StateKey, Turns, intern
from gagpo.credit.turns.padded import turn_numbers, turns_from_tokens

__all__ = [
    "AnyCredit",
    "BadTurns",
    "Credit",
    "CreditSettings",
    "Level",
    "StateKey",
    "Turns",
    "advantages",
    "find",
    "give_credit",
    "intern",
    "names",
    "register",
    "turn_numbers",
    "turns_for",
    "turns_from_tokens",
]
