"""The old place of episodes and turns, until every import names :mod:`gagpo.data`."""

from gagpo.data import (
    MOST_REFUSAL,
    MOST_SENT,
    Call,
    Decode,
    Episode,
    Ids,
    Invalid,
    Turn,
    episodes_in,
    read_episodes,
    write_episodes,
)

__all__ = [
    "MOST_REFUSAL",
    "MOST_SENT",
    "Call",
    "Decode",
    "Episode",
    "Ids",
    "Invalid",
    "Turn",
    "episodes_in",
    "read_episodes",
    "write_episodes",
]
