"""Runs untrusted queries, read-only and with reproducible results.

The limits here are the same on every machine: steps of SQLite's virtual machine, length of a value, size of a result.
They do not limit the CPU time of a query. One step may sort a table or scan a file, and preparing a statement takes no
steps, but its time can double with each nested definition. So untrusted queries run in a child process with a limit on
CPU time: :mod:`gagpo.envs.sql.process`.
"""

from __future__ import annotations

import functools
import re
import shlex
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gagpo.base.errors import GagpoError
from gagpo.envs.sql import functions
from gagpo.envs.sql.tokens import without_end

MAX_SQL = 10_000  # characters of a query
# One step of SQLite's virtual machine can take seconds on a long value (instr, replace, hex(zeroblob(n))), and the
# progress handler is not called within a step. So the length of a value bounds the time of a step.
MAX_LENGTH = 10_000  # bytes of a value in a generated database
MAX_STORED_LENGTH = 100_000  # bytes of a value in a file

Row = tuple[Any, ...]
Table = tuple[str, tuple[tuple[str, str], ...], tuple[Row, ...]]
"""Name, columns with their declarations, and rows."""
Source = str | tuple[Table, ...]
"""The path of an SQLite file, or the tables of a database in memory."""
Copy = tuple[str, str, int]
"""A perturbed copy of a file: its path, the gold query and the number of the copy."""
Columns = dict[str, list[tuple[str, str]]]
"""Names and types of the columns of each table."""

_LOG_STARTS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_LOG_HEADER = 32  # bytes; a log without frames is no longer
_JOURNAL_START = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"

_STEPS_PER_CHECK = 1_000  # steps between two checks; more often, the calls into Python would slow ordinary queries
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_QUERY = re.compile(r"(?>\s+|--[^\n]*|/\*(?>.*?\*/))*+(?:select|with|values)\b", re.IGNORECASE | re.DOTALL)


class QueryFailed(Exception):
    """A query is not allowed, is wrong, or exceeds a limit; the message is for its author."""


class BadDatabase(GagpoError, ValueError):
    """A file is not a database."""


@dataclass(frozen=True)
class Cost:
    """The resources that a query used.

    steps: steps of SQLite's virtual machine, rounded down to thousands.
    seconds: CPU time.
    size: size of the result, in bytes.
    """

    steps: int = 0
    seconds: float = 0.0
    size: int = 0


@dataclass(frozen=True)
class Bounds:
    """The limits of a query, in the units of :class:`Cost`.

    Steps are the same on every machine; the CPU time limits what steps do not count.
    """

    steps: int = 5_000_000
    seconds: float = 2.0
    size: int = 32 * 2**20

    def extended(self, gold: Cost) -> Bounds:
        """These bounds plus four times the steps and time of a task's gold query, and twice its size."""
        return Bounds(self.steps + 4 * gold.steps, round(self.seconds + 4 * gold.seconds, 3), self.size + 2 * gold.size)


STORED = Bounds(steps=20_000_000, seconds=4.0)
"""The minimum bounds for queries of a file: enough to read a table of a million rows once or twice."""
GOLD = Bounds(steps=2**40, seconds=10.0, size=256 * 2**20)
"""The bounds of gold queries."""


@dataclass(frozen=True)
class Result:
    names: list[str]
    rows: list[Row]
    cost: Cost


class OpenDatabase(NamedTuple):
    """A connection that queries will read.

    tables: its tables.
    views: names of its views.
    max_length: bytes of a value.
    """

    connection: sqlite3.Connection
    tables: Columns
    views: list[str]
    max_length: int


class Database:
    """A read-only SQLite database.

    SQLite's authorizer rejects writing, attaching, pragmas, loading extensions, and every function that is not in
    :data:`gagpo.envs.sql.functions.ALLOWED`.
    """

    def __init__(self, source: Source | OpenDatabase):
        self._refused = ""
        if isinstance(source, str):
            source = open_file(source)
        elif not isinstance(source, OpenDatabase):
            source = OpenDatabase(create(source), columns_of(source), [], MAX_LENGTH)
        self._connection = source.connection
        self.tables = source.tables
        self._readable = {name.lower() for name in (*self.tables, *source.views)}
        # Limits of what is parsed: generous for a query that a person would write, but a nested or repeated definition
        # can take time and memory before the first step.
        limits = {
            sqlite3.SQLITE_LIMIT_LENGTH: source.max_length,
            sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL,
            sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
            sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
            sqlite3.SQLITE_LIMIT_ATTACHED: 0,
            sqlite3.SQLITE_LIMIT_COLUMN: 200,
            sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
        }
        for name, value in limits.items():
            self._connection.setlimit(name, value)
        self._connection.execute("PRAGMA temp_store = MEMORY")  # never write to a disk
        functions.install(self._connection, self._refuse)
        self._connection.set_authorizer(self._authorize)

    def run(self, sql: str, bounds: Bounds = Bounds(), limit: int | None = None) -> Result:
        """The result, or its first ``limit`` rows; raises :class:`QueryFailed`."""
        if len(sql) > MAX_SQL:
            raise QueryFailed(f"a query may have {MAX_SQL} characters")
        if not _QUERY.match(sql):
            raise QueryFailed("only SELECT is possible")
        self._refused = ""
        steps = 0
        start = time.process_time()

        def tick() -> bool:
            nonlocal steps
            steps += _STEPS_PER_CHECK
            return steps > bounds.steps

        self._connection.set_progress_handler(tick, _STEPS_PER_CHECK)
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(without_end(sql))
                names = [column[0] for column in cursor.description or []]
                if not names:
                    raise QueryFailed("only SELECT is possible")
                rows, size = _fetch(cursor, limit, bounds.size)
            return Result(names, rows, Cost(steps, time.process_time() - start, size))
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            raise QueryFailed(self._refused or _reason(error)) from None
        except MemoryError:
            raise QueryFailed("the query takes too much memory") from None
        finally:
            self._connection.set_progress_handler(None, 0)

    def read_backwards(self) -> None:
        """Read tables in the opposite order from then on, wherever a query does not ask for an order."""
        self._connection.set_authorizer(None)
        self._connection.execute("PRAGMA reverse_unordered_selects = ON")
        self._connection.set_authorizer(self._authorize)

    def _refuse(self, reason: str) -> None:
        self._refused = reason

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION:
            self._refused = functions.rejection_reason(str(second).lower()) or self._refused
        elif action not in _ALLOWED or (
            action == sqlite3.SQLITE_READ and not self._can_read(str(first).lower(), second)
        ):
            self._refused = "only reading the tables of this database is allowed"
        return sqlite3.SQLITE_DENY if self._refused else sqlite3.SQLITE_OK

    def _can_read(self, table: str, column: str | None) -> bool:
        """Whether a table may be read. SQLite asks for a query's own tables only if none of their columns are read."""
        return table in self._readable or not (
            column or table.startswith(("sqlite_", "pragma_")) or table in _modules()
        )

    def close(self) -> None:
        self._connection.close()


@functools.cache
def _modules() -> frozenset[str]:
    """The virtual tables that show the engine or the memory of this process."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return frozenset(name.lower() for (name,) in connection.execute("SELECT name FROM pragma_module_list"))


def open_file(path: str) -> OpenDatabase:
    """A read-only connection to a file that nothing else changes.

    Raises:
        BadDatabase: there is no such file, it is not a database, or it has changes that are not written back.
    """
    if not Path(path).is_file():
        raise BadDatabase("there is no such database", where=path)
    reject_journal(Path(path))
    log = log_of(Path(path))
    if log is not None:
        raise BadDatabase(f"{log.name} has changes that are not in the file", where=path, advice=advice(path))
    address = f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1"
    columns = "SELECT name, type FROM pragma_table_info(?) ORDER BY cid"
    try:
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA cache_size = -20000")
        schema_rows = connection.execute("SELECT type, name FROM sqlite_master ORDER BY name").fetchall()
        names = [
            name for entry_type, name in schema_rows if entry_type == "table" and not name.lower().startswith("sqlite_")
        ]
        tables = {name: connection.execute(columns, (name,)).fetchall() for name in names}
    except sqlite3.Error as error:
        raise BadDatabase(f"not an SQLite database ({error})", where=path) from None
    return OpenDatabase(
        connection, tables, [name for entry_type, name in schema_rows if entry_type == "view"], MAX_STORED_LENGTH
    )


def log_of(path: Path) -> Path | None:
    """The write-ahead log of a database file; None if it has no changes that the file lacks."""
    return _journal(path, "-wal", _LOG_STARTS, _LOG_HEADER)


def reject_journal(path: Path) -> None:
    """Raise BadDatabase if a write to the file was interrupted, so that it must be rolled back.

    A journal that was rolled back or committed is empty, or starts with zeros.
    """
    journal = _journal(path, "-journal", (_JOURNAL_START,), len(_JOURNAL_START))
    if journal is not None:
        raise BadDatabase(f"{journal.name} is of an interrupted write", where=path, advice=advice(path))


def _journal(path: Path, suffix: str, starts: tuple[bytes, ...], header: int) -> Path | None:
    """The file next to a database with this suffix if it is longer than ``header`` and starts like one."""
    file = path.resolve()
    journal = file.with_name(f"{file.name}{suffix}")
    try:
        with journal.open("rb") as content:
            start = content.read(header + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadDatabase(f"cannot be read ({error.strerror})", where=journal) from None
    if len(start) > header and start.startswith(starts):
        return journal
    return None


def advice(path: str | Path) -> str:
    """The command that writes the changes back."""
    return f"close the programs that use it and run: sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode = DELETE'"


def create(tables: tuple[Table, ...]) -> sqlite3.Connection:
    """A connection to a new database in memory with the ``tables``, without bounds."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for name, columns, rows in tables:
        declared = ", ".join(f"{column} {declaration}" for column, declaration in columns)
        connection.execute(f"CREATE TABLE {name} ({declared})")
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
    return connection


def columns_of(tables: tuple[Table, ...]) -> Columns:
    """The columns of ``tables``; a type is the first word of its declaration.

    >>> columns_of((("people", (("id", "INTEGER PRIMARY KEY"), ("name", "TEXT NOT NULL")), ()),))
    {'people': [('id', 'INTEGER'), ('name', 'TEXT')]}
    """
    return {
        name: [(column, declaration.partition(" ")[0]) for column, declaration in columns]
        for name, columns, _ in tables
    }


def _fetch(cursor: sqlite3.Cursor, limit: int | None, max_size: int) -> tuple[list[Row], int]:
    """At most ``limit`` rows and their approximate size in bytes; one by one, because a row may be large."""
    rows: list[Row] = []
    size = 0
    while limit is None or len(rows) < limit:
        row = cursor.fetchone()
        if row is None:
            break
        size += 64 + sum(40 + len(value) if isinstance(value, str | bytes) else 40 for value in row)
        if size > max_size:
            raise QueryFailed("the result is too large")
        rows.append(row)
    return rows, size


def _reason(error: Exception) -> str:
    if "interrupted" in str(error):
        return "the query takes too long"
    return " ".join(str(error).encode("utf-8", "replace").decode().split())[:200] or "the query failed"


def show(names: Sequence[str], rows: Sequence[Row], limit: int, width: int = 60) -> str:
    """A result as text: names and at most ``limit`` rows, with values cut at ``width`` characters.

    >>> show(["name", "age"], [("Ann", 3), ("Bo", None)], 1)
    'name | age\\nAnn | 3\\n(1 row of more)'
    """
    lines = [" | ".join(name[:width] for name in names)]
    lines += [" | ".join(_show_value(value, width) for value in row) for row in rows[:limit]]
    if not rows:
        lines.append("(no rows)")
    elif len(rows) > limit:
        lines.append(f"({limit} row{'s' * (limit != 1)} of more)")
    return "\n".join(lines)


def _show_value(value: Any, width: int) -> str:
    if value is None:
        text = "NULL"
    else:
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."
