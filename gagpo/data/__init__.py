"""Stages of experience, from episodes to rows of tokens; needs numpy alone.

1. A rollout collects an :class:`Episode` of :class:`Turn` objects, which do not change once they are complete.
2. :func:`turns_from_episodes` makes :class:`Turns`, the columns of a batch that credit is computed from, with states by
   a :data:`StateKey`. :func:`turns_from_tokens` makes them from another trainer's padded matrices.
3. :func:`build_rows` makes each :class:`Row`, a token sequence that the trainer reads; turns with a common prefix share
   one.
4. Training gives a :class:`TurnCredit` for each turn. :func:`write_episodes` writes both, in the format of
   :mod:`gagpo.data.episode_file`.
"""

from gagpo.data.episode import MOST_SENT, SUCCESS_ASSUMED, Decode, Episode
from gagpo.data.episode_file import (
    MOST_REFUSAL,
    credits_from_record,
    episode_from_record,
    episode_record,
    episodes_in,
    read_episodes,
    write_episodes,
)
from gagpo.data.errors import BadTurns
from gagpo.data.from_episodes import tasks_of_groups, turns_from_episodes
from gagpo.data.from_tokens import turns_from_tokens
from gagpo.data.rows import Row, build_rows
from gagpo.data.state_keys import StateKey, intern
from gagpo.data.turn import INVALID_REASONS, Call, Ids, Invalid, Turn
from gagpo.data.turn_credit import TurnCredit
from gagpo.data.turns import Scope, Turns, renumber

__all__ = [
    "INVALID_REASONS",
    "MOST_REFUSAL",
    "MOST_SENT",
    "SUCCESS_ASSUMED",
    "BadTurns",
    "Call",
    "Decode",
    "Episode",
    "Ids",
    "Invalid",
    "Row",
    "Scope",
    "StateKey",
    "Turn",
    "TurnCredit",
    "Turns",
    "build_rows",
    "credits_from_record",
    "episode_from_record",
    "episode_record",
    "episodes_in",
    "intern",
    "read_episodes",
    "renumber",
    "tasks_of_groups",
    "turns_from_episodes",
    "turns_from_tokens",
    "write_episodes",
]
