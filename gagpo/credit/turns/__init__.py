"""The columns that credit is computed from, and statistics within their groups."""

from gagpo.credit.turns.columns import Scope, Turns, renumber
from gagpo.credit.turns.errors import BadTurns
from gagpo.credit.turns.keys import StateKey, intern

__all__ = ["BadTurns", "Scope", "StateKey", "Turns", "intern", "renumber"]
