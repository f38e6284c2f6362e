"""Splits SQL text into tokens, as far as finding clauses and the end of a statement requires."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`[^`]*+`|\[[^\]]*+\]|--[^\n]*+|/\*(?>.*?(?:\*/|\Z))|[()]|\w++|.""", re.DOTALL
)


def tokens(sql: str) -> Iterator[str]:
    """The words, quoted names, literals and signs of ``sql``, without white space and comments.

    As in SQLite, a comment that is not closed reaches to the end.

    >>> list(tokens("SELECT 'a -- b' /* text */ FROM [t u]; -- end"))
    ['SELECT', "'a -- b'", 'FROM', '[t u]', ';']
    """
    return (match[0] for match in _significant(sql))


def without_end(sql: str) -> str:
    """``sql`` without the semicolons, comments and white space after its last statement.

    Python's sqlite3 rejects a second semicolon as a second statement.

    >>> without_end("SELECT ';' FROM t ; ; -- the end")
    "SELECT ';' FROM t"
    >>> without_end("SELECT 1; SELECT 2;")
    'SELECT 1; SELECT 2'
    """
    if ";" not in sql:
        return sql
    end = 0
    for match in _significant(sql):
        if match[0] != ";":
            end = match.end()
    return sql[:end]


def _significant(sql: str) -> Iterator[re.Match[str]]:
    for match in _TOKEN.finditer(sql):
        if not match[0].isspace() and not match[0].startswith(("--", "/*")):
            yield match
