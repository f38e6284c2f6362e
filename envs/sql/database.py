"""Running queries that somebody untrusted wrote: they only read, always end, and give the same answer every time."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gagpo.envs.errors import GagpoError

MAX_SQL = 10_000  # characters of a query
MAX_ROWS = 10_000  # of a result that is compared
MAX_STEPS = 5_000_000  # of SQLite's machine; a bound in steps, unlike one in seconds, is the same everywhere
MAX_SECONDS = 10.0  # for what the steps do not bound
_EVERY = 1_000

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN = {"load_extension", "random", "randomblob", "readfile", "writefile", "edit", "fts3_tokenizer"}
_FORBIDDEN |= {"sqlite_compileoption_get", "sqlite_version", "sqlite_source_id", "changes", "total_changes"}
_QUERY = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(?:select|with|values)\b", re.IGNORECASE | re.DOTALL)
_CLOCK = re.compile(r"'\s*(?:now|localtime|utc)\s*'|\bcurrent_(?:time|date|timestamp)\b", re.IGNORECASE)


class QueryFailed(Exception):
    """A query that was refused, is wrong, or took too long; the message is for its author."""


class BadDatabase(GagpoError, ValueError):
    """A file that is no database."""


class Database:
    """One SQLite file, opened for reading only.

    Writing, attaching, pragmas and loading are refused by the engine itself; so is whatever depends on chance or the
    clock. A query ends after ``MAX_STEPS`` machine steps or ``MAX_SECONDS``.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise BadDatabase(f"there is no database {path}")
        self.path = path
        address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self.tables = self._read_tables()
        except sqlite3.Error as error:
            raise BadDatabase(f"{path}: not an SQLite database ({error})") from None
        limits = {
            sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
            sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL,
            sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
            sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
            sqlite3.SQLITE_LIMIT_ATTACHED: 0,
            sqlite3.SQLITE_LIMIT_COLUMN: 200,
            sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
        }
        for name, value in limits.items():
            self._connection.setlimit(name, value)
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute("PRAGMA cache_size = -20000")
        self._connection.set_authorizer(_authorize)

    def _read_tables(self) -> dict[str, list[tuple[str, str]]]:
        names = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        columns = "SELECT name, type FROM pragma_table_info(?) ORDER BY cid"
        return {name: self._connection.execute(columns, (name,)).fetchall() for (name,) in names}

    def run(self, sql: str, limit: int = MAX_ROWS) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and at most ``limit`` rows; :class:`QueryFailed` says what is wrong."""
        if len(sql) > MAX_SQL:
            raise QueryFailed(f"a query may have {MAX_SQL} characters")
        if not _QUERY.match(sql):
            raise QueryFailed("only SELECT is possible")
        if _CLOCK.search(sql):
            raise QueryFailed("there is no clock here")
        steps, end = 0, time.monotonic() + MAX_SECONDS

        def tick() -> bool:
            nonlocal steps
            steps += _EVERY
            return steps > MAX_STEPS or time.monotonic() > end

        self._connection.set_progress_handler(tick, _EVERY)
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(sql)
                names = [column[0] for column in cursor.description or []]
                if not names:
                    raise QueryFailed("only SELECT is possible")
                return names, cursor.fetchmany(limit)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            if "interrupted" in str(error):
                raise QueryFailed("the query takes too long") from None
            if "prohibited" in str(error) or "not authorized" in str(error):
                raise QueryFailed("only reading is allowed") from None
            raise QueryFailed(str(error).encode("utf-8", "replace").decode()[:200]) from None
        finally:
            self._connection.set_progress_handler(None, 0)

    def close(self) -> None:
        self._connection.close()


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FORBIDDEN:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_READ and str(first).lower().startswith(("sqlite_", "pragma_")):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def same_result(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]], ordered: bool) -> bool:
    """Execution accuracy: equal rows, in the same order if ``ordered``, else counted; numbers to nine digits.

    >>> same_result([(1,), (2,)], [(2.0,), (1.0,)], ordered=False)
    True
    >>> same_result([(1,)], [(1,), (1,)], ordered=False)
    False
    """
    left, right = [_plain(row) for row in one], [_plain(row) for row in other]
    return left == right if ordered else Counter(left) == Counter(right)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_number(value) if isinstance(value, int | float) else value for value in row)


def _number(value: float) -> float | str:
    try:
        number = float(value)
    except OverflowError:
        return str(value)
    return float(f"{number:.9g}") if math.isfinite(number) else str(number)


def show(names: Sequence[str], rows: Sequence[tuple[Any, ...]], limit: int, width: int = 60) -> str:
    """A result as text: names, at most ``limit`` rows, each value cut at ``width`` characters.

    >>> show(["name", "age"], [("Ann", 3), ("Bo", None)], 1)
    'name | age\\nAnn | 3\\n(1 row of more)'
    """
    lines = [" | ".join(name[:width] for name in names)]
    lines += [" | ".join(_shown(value, width) for value in row) for row in rows[:limit]]
    if not rows:
        lines.append("(no rows)")
    elif len(rows) > limit:
        lines.append(f"({limit} row{'s' * (limit != 1)} of more)")
    return "\n".join(lines)


def _shown(value: Any, width: int) -> str:
    text = "NULL" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."
