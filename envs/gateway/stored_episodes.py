"""Episodes of programs in files, where the messages of their requests are missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gagpo.base.errors import InvalidArgument

COUNTS = ("rewritten", "unread", "refused")
"""Counts in the ``info`` of every program's episode: answers sent back altered, answers not read, requests refused."""


def require_no_program(source: Path, info: Mapping[str, object]) -> None:
    """Raise InvalidArgument for an episode of a program, stored in ``source`` without the messages of its requests.

    info: of the episode.
    """
    if all(count in info for count in COUNTS):
        raise InvalidArgument(
            "holds episodes of an agent program, which do not say which request continues which",
            where=source,
            advice=(
                "imitate its successes with algorithm=rejection_sampling, or write its conversations in a reward "
                "function, which gets the transcript"
            ),
        )
