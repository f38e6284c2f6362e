"""The command that starts a program or a server, as a list of words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from gagpo.base.errors import InvalidArgument

LONGEST_WORD = 128 << 10
"""Bytes of an argument, or of ``NAME=value``, with its end: Linux starts no program with a longer one."""


def command_words(command: str | Sequence[str]) -> list[str]:
    """The words of a command, given as one line or as a list.

    Raises: InvalidArgument for one that no system can start, such as a line with an open quotation mark.
    """
    try:
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise InvalidArgument(
            error, where=f"command {command!r:.80}", advice="close it, or give a list of words"
        ) from None
    for word in arguments:
        if not isinstance(word, str) or "\0" in word:
            raise InvalidArgument(f"command: {word!r:.80} is not a word of text", key="command", advice="quote it")
        if not fits(word):
            raise InvalidArgument(f"command: {word!r:.40} is longer than {LONGEST_WORD} bytes", key="command")
    return arguments


def fits(word: str) -> bool:
    """Whether a program can be started with this argument or variable."""
    return len(os.fsencode(word)) < LONGEST_WORD
