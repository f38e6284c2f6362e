"""What credit is computed from: columns of turns, and statistics within their groups."""

from gagpo.credit.turns.columns import BadTurns, Turns, intern, renumber

__all__ = ["BadTurns", "Turns", "intern", "renumber"]
