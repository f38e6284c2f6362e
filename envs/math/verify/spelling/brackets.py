"""Matching brackets, and splitting outside of brackets."""

from __future__ import annotations

import re

OPENING = "([{"
CLOSING = ")]}"


def enclosed(text: str) -> bool:
    """Whether the first bracket of ``text`` is closed by its last character.

    >>> enclosed("(1, (2))"), enclosed("(1)(2)")
    (True, False)
    """
    depth = 0
    for i, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return i == len(text) - 1
    return False


def inside(text: str, position: int) -> tuple[str, int]:
    """The content of the bracket at ``position``, and the position after it; up to the end if it is not closed.

    >>> inside("2(3(4))5", 1)
    ('3(4)', 7)
    """
    depth = 0
    for end in range(position, len(text)):
        depth += (text[end] in OPENING) - (text[end] in CLOSING)
        if depth == 0:
            return text[position + 1 : end], end + 1
    return text[position + 1 :], len(text)


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split ``text`` at separators outside all brackets; returns the parts and the separators, stripped.

    >>> split("(1, 2), 3", re.compile(","))
    (['(1, 2)', '3'], [','])
    """
    if separator.search(text) is None:
        return [text.strip()], []
    items = []
    separators = []
    depth = 0
    start = 0
    i = 0
    while i < len(text):
        character = text[i]
        depth += (character in OPENING) - (character in CLOSING)
        match = separator.match(text, i) if depth == 0 else None
        if match is None or match.end() == i:
            # An escaped brace is a bracket too; the name of a command is skipped.
            command = _COMMAND.match(text, i) if character == "\\" else None
            i = command.end() if command else i + 1
            continue
        items.append(text[start:i].strip())
        separators.append(match[0].strip())
        start = i = match.end()
    return [*items, text[start:].strip()], separators


_COMMAND = re.compile(r"\\[a-zA-Z]+")
