"""The literals of a query, each with the column that it is compared with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gagpo.envs.sql.tokens import tokens

_COUNTS = ("limit", "offset")
_QUOTES = {'"': '"', "`": "`", "[": "]"}


def literals_of(sql: str, columns: Collection[str]) -> dict[str, list[Any]]:
    """The literals by lower-cased column: the nearest column before a literal, or else the first after it.

    A pattern of LIKE becomes a text that it matches. SQLite reads a name in double quotes that is no column as a text.

    >>> literals_of("SELECT a FROM t WHERE b = 'x' AND c > 2.5 AND d LIKE '%y_z' LIMIT 3", ["a", "b", "c", "d"])
    {'b': ['x'], 'c': [2.5], 'd': ['yaz']}
    """
    names = {column.lower() for column in columns}
    tokens = list(_joined(sql))
    literals: dict[str, list[Any]] = {}
    column = next((name for name in map(_name, tokens) if name in names), None)
    for index, token in enumerate(tokens):
        before = tokens[index - 1].lower() if index else ""
        if _name(token) in names:
            column = _name(token)
            continue
        value = _value(token)
        if value is None or column is None or before in _COUNTS:
            continue
        if isinstance(value, str) and before in ("like", "glob"):
            value = value.strip("%*").replace("%", "").replace("_", "a").replace("*", "").replace("?", "a")
        literals.setdefault(column, []).append(value)
    return literals


def _joined(sql: str) -> list[str]:
    """The tokens, with those of a decimal number joined."""
    joined: list[str] = []
    for token in tokens(sql):
        number = len(joined) > 1 and joined[-1] == "." and joined[-2].isdigit() and token.isdigit()
        if number:
            joined[-2:] = [f"{joined[-2]}.{token}"]
        else:
            joined.append(token)
    return joined


def _name(token: str) -> str:
    end = _QUOTES.get(token[0])
    return (token[1:-1] if end and token.endswith(end) else token).lower()


def _value(token: str) -> Any:
    """The value of a literal; None for other tokens."""
    if len(token) > 1 and token[0] in "'\"" and token[0] == token[-1]:
        return token[1:-1].replace(token[0] * 2, token[0])
    digits = token.replace(".", "", 1)
    if digits.isascii() and digits.isdigit():
        return float(token) if "." in token else int(token)
    return None
