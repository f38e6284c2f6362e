"""Stages of experience, from episodes to rows of tokens; needs numpy alone.

1. The rollout collects an :class:`Episode` of :class:`Turn` s; ``episode_file`` writes and reads them.
2. :class:`Turns` holds the columns of a batch of turns, from which credit is computed.
3. A :class:`Row` is one token sequence that the trainer reads; :func:`build_rows` merges turns with a common prefix.
"""

from gagpo.data.episode import MOST_SENT, Decode, Episode
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
