"""Perturbed copies of a database: other rows for the same tables, under the same constraints.

The rows of a copy are those of a bounded sample, some left out, some repeated with other keys, with values drawn again.
SQLite itself enforces NOT NULL, UNIQUE and CHECK constraints while the rows are inserted; foreign keys are drawn from
the keys of the parent. A copy depends on the sample, the gold query and its number alone, and exists only in memory.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gagpo.envs.sql import functions
from gagpo.envs.sql.database import MAX_STORED_LENGTH, BadDatabase, OpenDatabase, Row
from gagpo.envs.sql.literals import literals_of
from gagpo.envs.sql.structure import ForeignKey, Sample, SampledTable, quote_identifier
from gagpo.envs.sql.values import ColumnValues

VERSION = 1
"""Part of a task's digest: another way of drawing judges the answers of a task by other databases."""
_SIZES = (40, 150, 600)  # rows of a table; larger copies are tried where the gold query finds nothing in small ones
_RATES = (0.25, 0.5, 0.5, 0.8, 0.5)  # probabilities that a value changes
_MIN_FRACTIONS = (0.6, 0.6, 0.3, 0.6, 0.0)  # the least fraction of a table's rows
NUMBERS = len(_SIZES) * len(_RATES)
"""Copies that are tried for a question."""
_ALL_ROWS = 6_000  # of a copy
_TRIES = 5  # to draw a row that meets the constraints
_STEPS_PER_CHECK = 10_000  # steps of SQLite's virtual machine between two checks
_MAX_STEPS = 50_000_000  # to make a copy
_ALLOWED = {
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_INSERT),
    *(sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION),
    *(sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_RECURSIVE),
}


def perturb(sample: Sample, gold: str, number: int) -> OpenDatabase:
    """Copy ``number`` (0 to :data:`NUMBERS` - 1) for a gold query.

    Copies come in sets of three sizes, in which more and more values change. The last of a set may lack most rows.

    Raises:
        BadDatabase: a copy takes too long, or a constraint cannot be met.
    """
    size = _SIZES[number // len(_RATES)]
    variant = number % len(_RATES)
    rng = random.Random(f"{VERSION} {sample.digest} {gold} {number}")
    names = {column.name for table in sample.tables for column in table.columns}
    literals = literals_of(gold, names)
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        _guard(connection)
        _define(connection, sample)
        rows: dict[str, list[Row]] = {}
        connection.execute("BEGIN")
        for table in _parents_first(sample.tables):
            max_rows = max(5, min(size, _ALL_ROWS // len(sample.tables)))
            filler = _TableFiller(table, literals, _RATES[variant], rows, rng)
            rows[table.name] = filler.fill(connection, max_rows, _MIN_FRACTIONS[variant])
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise BadDatabase(f"no copy can be made ({error})", where=sample.path) from None
    finally:
        with suppress(sqlite3.ProgrammingError):  # closed
            connection.set_progress_handler(None, 0)
            connection.set_authorizer(None)
    columns = {table.name: [(column.name, column.affinity) for column in table.columns] for table in sample.tables}
    return OpenDatabase(connection, columns, list(sample.views), MAX_STORED_LENGTH)


def _guard(connection: sqlite3.Connection) -> None:
    """Limit what definitions of an untrusted file can do: constraints may call functions, and nothing else runs."""
    steps = 0

    def tick() -> bool:
        nonlocal steps
        steps += _STEPS_PER_CHECK
        return steps > _MAX_STEPS

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION:
            allowed = functions.rejection_reason(str(second).lower()) is None
        else:
            allowed = action in _ALLOWED
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, MAX_STORED_LENGTH),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):
        connection.setlimit(limit, value)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA foreign_keys = OFF")  # of several tables that refer to each other none could be first
    functions.install(connection, lambda reason: None)
    connection.set_progress_handler(tick, _STEPS_PER_CHECK)
    connection.set_authorizer(authorize)


def _define(connection: sqlite3.Connection, sample: Sample) -> None:
    """Create the tables, indexes and views.

    A table whose definition is not allowed, such as a CHECK that asks for the time, has the same columns without
    constraints. Other definitions that are not allowed are left out.
    """
    for table in sample.tables:
        try:
            connection.execute(table.sql)
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            columns = ", ".join(f"{quote_identifier(column.name)} {column.affinity}" for column in table.columns)
            connection.execute(f"CREATE TABLE {quote_identifier(table.name)} ({columns})")
    for sql in sample.definitions:
        with suppress(sqlite3.Error, sqlite3.Warning, ValueError):
            connection.execute(sql)


def _parents_first(tables: tuple[SampledTable, ...]) -> list[SampledTable]:
    """The tables, each after those that it refers to; in a circle, the first in the file comes last."""
    by_name = {table.name: table for table in tables}
    ordered: dict[str, SampledTable] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in visited:
            return
        visited.add(name)
        for link in by_name[name].links:
            visit(link.parent)
        ordered[name] = by_name[name]

    for table in tables:
        visit(table.name)
    return list(ordered.values())


class _TableFiller:
    """Draws and inserts the rows of one table of a copy.

    rows: the rows inserted so far, by table.
    rate: probability that a value changes.
    """

    def __init__(
        self,
        table: SampledTable,
        literals: Mapping[str, list[Any]],
        rate: float,
        rows: Mapping[str, list[Row]],
        rng: random.Random,
    ):
        self._table = table
        self._rate = rate
        self._rng = rng
        self.inserted: list[Row] = []
        stored = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
        self._columns = [
            ColumnValues(column, values, literals.get(column.name.lower(), ()), rate, rng)
            for column, values in zip(table.columns, stored, strict=True)
        ]
        self._keys = {link: _keys(link, rows.get(link.parent, ())) for link in table.links}

    def fill(self, connection: sqlite3.Connection, max_rows: int, min_fraction: float) -> list[Row]:
        """Insert at most ``max_rows`` rows that meet the constraints, and return them.

        min_fraction: the least fraction of the table's rows that a copy has.
        """
        names = ", ".join(quote_identifier(column.name) for column in self._table.columns)
        slots = ", ".join("?" * len(self._table.columns))
        statement = f"INSERT OR IGNORE INTO {quote_identifier(self._table.name)} ({names}) VALUES ({slots})"
        for template in self._templates(max_rows, min_fraction):
            for _ in range(_TRIES):
                row = self._draw(template)
                if row is not None and self._insert(connection, statement, row):
                    break
        return self.inserted

    def _insert(self, connection: sqlite3.Connection, statement: str, row: Row) -> bool:
        try:
            if connection.execute(statement, row).rowcount != 1:
                return False  # a constraint is not met
        except sqlite3.Error as error:  # a value of another type in a STRICT table, or a function that is not allowed
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise
            return False
        except OverflowError:
            return False
        self.inserted.append(row)
        for column, value in zip(self._columns, row, strict=True):
            column.use(value)
        for link, keys in self._keys.items():
            if link.parent == self._table.name:
                keys.extend(_keys(link, [row]))
        return True

    def _templates(self, max_rows: int, min_fraction: float) -> list[Row]:
        """The rows that a copy starts from: some of the table's left out, and some repeated."""
        rows = self._table.rows
        rng = self._rng
        if not rows:
            return [(None,) * len(self._table.columns)] * rng.randint(3, 6)
        fraction = min_fraction + (1.2 - min_fraction) * rng.random() ** (1 if min_fraction else 3)
        count = min(max_rows, max(1, round(len(rows) * fraction) + rng.randint(0, 2)))
        distinct = rng.sample(rows, min(count, max(1, round(len(rows) * rng.uniform(max(min_fraction, 0.3), 1.0)))))
        return [*distinct, *(rng.choice(rows) for _ in range(count - len(distinct)))]

    def _draw(self, template: Row) -> Row | None:
        """A row like ``template``; None if a column needs a value and has no unused one."""
        values: dict[int, Any] = {}
        for link in self._table.links:
            for index, value in zip(link.columns, self._key(link, template), strict=True):
                values.setdefault(index, value)
        for index, column in enumerate(self._columns):
            if index not in values:
                values[index] = column.draw(template[index])
            if values[index] is None and not column.optional:
                return None
        return tuple(values[index] for index in range(len(self._columns)))

    def _key(self, link: ForeignKey, template: Row) -> Row:
        """A key of the parent for a row: the same as before or another; none where there is no parent."""
        before = tuple(template[index] for index in link.columns)
        columns = [self._columns[index] for index in link.columns]
        optional = all(column.optional for column in columns)
        if optional and self._table.rows and None in before and self._rng.random() < 0.8:
            return before
        keys = self._keys[link]
        if len(columns) == 1 and columns[0].unique:
            keys = [key for key in keys if columns[0].is_unused(key[0])]
        if not keys:
            return (None,) * len(before) if optional else before
        if len(columns) == 1 and columns[0].literals and self._rng.random() < 0.3:
            literal = (self._rng.choice(columns[0].literals),)
            if literal in keys:
                return literal
        if before in keys and self._rng.random() >= self._rate:
            return before
        return self._rng.choice(keys)


def _keys(link: ForeignKey, rows: Sequence[Row]) -> list[Row]:
    return [tuple(row[column] for column in link.parent_columns) for row in rows]
