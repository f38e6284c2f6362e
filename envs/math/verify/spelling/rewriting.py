"""Tables of patterns and replacements, applied from top to bottom."""

from __future__ import annotations

import re

Table = tuple[tuple[re.Pattern[str], str], ...]


def table(*rows: tuple[str, str], flags: int = 0) -> Table:
    return tuple((re.compile(pattern, flags), replacement) for pattern, replacement in rows)


def rewrite(text: str, rows: Table) -> str:
    """``text`` after every row of the table.

    >>> rewrite("x<=2", table(("<=", r"\\\\le "), ("x", "y")))
    'y\\\\le 2'
    """
    for pattern, replacement in rows:
        # Most patterns do not occur, and sub parses its replacement on every call.
        if pattern.search(text):
            text = pattern.sub(replacement, text)
    return text
