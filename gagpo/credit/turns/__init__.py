"""The columns that credit is computed from, and statistics within their groups."""

from gagpo.credit.turns.columns import Turns, renumber
from gagpo.credit.turns.errors import BadTurns
from gagpo.credit.turns.keys import StateKey, intern

__all__ = ["BadTurns", "StateKey", "Turns", "intern", "renumber"]
