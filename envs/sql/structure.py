"""The structure of a database file, and a bounded sample of its rows.

Nothing that the file defines is run: views, triggers and virtual tables are not read, generated columns are left out.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from typing import Any

from gagpo.envs.sql.database import BadDatabase, Row, open_file

MAX_TABLES = 200
SAMPLED_ROWS = 600  # of a table
_ALL_SAMPLED_ROWS = 20_000  # of a file
_ALL_SAMPLED_BYTES = 32 * 2**20
_MAX_LENGTH = 1_000  # characters or bytes of a sampled value; the rest is cut
_READ_LENGTH = 10 * 2**20  # bytes of a value; the rows after a longer one are left out


@dataclass(frozen=True)
class TableColumn:
    """A column that can be written.

    affinity: SQLite's, one of INTEGER, REAL, NUMERIC, TEXT, BLOB.
    required: declared NOT NULL, or part of the primary key.
    key: unique by declaration.
    """

    name: str
    affinity: str
    required: bool
    key: bool


Columns = Mapping[str, tuple[TableColumn, ...]]
"""The columns of each table."""


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key: places of its columns in the table, and of the columns that they refer to in ``parent``.

    Declared, or implied by the names and values of two columns, because right queries may rely on it.
    """

    columns: tuple[int, ...]
    parent: str
    parent_columns: tuple[int, ...]


@dataclass(frozen=True)
class SampledTable:
    """A table with at most :data:`SAMPLED_ROWS` rows, drawn at random from a larger one.

    sql: its definition.
    """

    name: str
    sql: str
    columns: tuple[TableColumn, ...]
    links: tuple[ForeignKey, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sample:
    """A database file in small.

    path: the file; not part of the digest.
    definitions: SQL of its indexes and views.
    views: names of its views.
    """

    path: str
    tables: tuple[SampledTable, ...]
    definitions: tuple[str, ...]
    views: tuple[str, ...]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the structure and the rows."""
        content = repr(([astuple(table) for table in self.tables], self.definitions))
        return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()


def read_sample(path: str) -> Sample:
    """The structure and a sample of the rows of a file; equal files give equal samples.

    Raises:
        BadDatabase: the file cannot be read, or has more than :data:`MAX_TABLES` tables.
    """
    with closing(open_file(path).connection) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _READ_LENGTH)
        try:
            return _read(connection, path)
        except sqlite3.Error as error:
            raise BadDatabase(f"its tables cannot be read ({error})", where=path) from None


def _read(connection: sqlite3.Connection, path: str) -> Sample:
    schema_rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
    ).fetchall()
    table_definitions = {
        name: sql for entry_type, name, sql in schema_rows if entry_type == "table" and _is_plain(name, sql)
    }
    if len(table_definitions) > MAX_TABLES:
        raise BadDatabase(
            f"has {len(table_definitions)} tables", where=path, advice=f"at most {MAX_TABLES} can be copied"
        )
    columns = {name: _columns(connection, name) for name in table_definitions}
    columns = {name: table_columns for name, table_columns in columns.items() if table_columns}
    bounds = _Bounds(len(columns))
    rows = {name: _rows(connection, name, table_columns, bounds) for name, table_columns in columns.items()}
    tables = []
    for name, table_columns in columns.items():
        links = _links(connection, name, columns)
        links += _implied_links(name, columns, rows, bounds.rows, {link.columns for link in links})
        tables.append(SampledTable(name, table_definitions[name], table_columns, tuple(links), rows[name]))
    definitions = [sql for entry_type, _, sql in schema_rows if entry_type in ("index", "view")]
    views = tuple(name for entry_type, name, _ in schema_rows if entry_type == "view")
    return Sample(path, tuple(tables), tuple(definitions), views)


def _is_plain(name: str, sql: str) -> bool:
    return not name.lower().startswith("sqlite_") and sql.upper().split(None, 2)[1:2] != ["VIRTUAL"]


def _columns(connection: sqlite3.Connection, table: str) -> tuple[TableColumn, ...]:
    column_rows = connection.execute(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid', (table,)
    ).fetchall()
    keys = [name for name, _, _, pk, _ in column_rows if pk]
    unique = {keys[0]} if len(keys) == 1 else set()
    indexes = connection.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,))
    for (index,) in indexes.fetchall():
        names = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        if len(names) == 1:
            unique.add(names[0][0])
    return tuple(
        TableColumn(name, _affinity(type_name), bool(required or pk), name in unique)
        for name, type_name, required, pk, hidden in column_rows
        if not hidden
    )


def _affinity(kind: str) -> str:
    """The affinity of a declared type, by section 3.1 of https://www.sqlite.org/datatype3.html."""
    kind = kind.upper()
    for substrings, affinity in (
        (("INT",), "INTEGER"),
        (("CHAR", "CLOB", "TEXT"), "TEXT"),
        (("BLOB",), "BLOB"),
        (("REAL", "FLOA", "DOUB"), "REAL"),
    ):
        if any(substring in kind for substring in substrings):
            return affinity
    return "NUMERIC" if kind else "BLOB"


def _links(connection: sqlite3.Connection, table: str, columns: Columns) -> list[ForeignKey]:
    """The foreign keys of a table to columns that exist; the others cannot be followed."""
    tables = {name.lower(): name for name in columns}
    key_rows = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq', (table,)
    ).fetchall()
    links: list[ForeignKey] = []
    for number in sorted({row[0] for row in key_rows}):
        pairs = [row for row in key_rows if row[0] == number]
        parent = tables.get(str(pairs[0][1]).lower())
        if parent is None:
            continue
        targets = [target for *_, target in pairs]
        if None in targets:  # the primary key
            primary = "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk"
            targets = [name for (name,) in connection.execute(primary, (parent,))]
        indices = _places([source for _, _, source, _ in pairs], columns[table])
        parent_places = _places(targets, columns[parent])
        if indices and len(indices) == len(parent_places) == len(pairs):
            links.append(ForeignKey(indices, parent, parent_places))
    return links


def _implied_links(
    table: str, columns: Columns, rows: Mapping[str, tuple[Row, ...]], sample_size: int, declared: set[tuple[int, ...]]
) -> list[ForeignKey]:
    """Columns that are named like the key of another table and have no other values than it.

    sample_size: the number of rows of a table of which others may be left out.
    """
    links: list[ForeignKey] = []
    for number, column in enumerate(columns[table]):
        values = {row[number] for row in rows[table]} - {None}
        if (number,) in declared or not values:
            continue
        for parent, parent_columns in columns.items():
            keys = [
                index for index, key in enumerate(parent_columns) if key.key and _is_named_after(column, parent, key)
            ]
            if parent == table or not keys:
                continue
            key_values = {row[keys[0]] for row in rows[parent]}
            if len(rows[parent]) == sample_size or (values <= key_values and not (column.key and values == key_values)):
                links.append(ForeignKey((number,), parent, (keys[0],)))
                break
    return links


def _is_named_after(column: TableColumn, parent: str, key: TableColumn) -> bool:
    """Whether a column is named like a key: ``singer_id`` like ``singer_id``, and like ``id`` of ``singers``."""
    name, parent_name, key_name = (text.lower().replace("_", "") for text in (column.name, parent, key.name))
    if name == key_name:
        return key_name != "id"
    return name in (f"{parent_name}{key_name}", f"{parent_name.removesuffix('s')}{key_name}")


def _places(names: list[str], columns: tuple[TableColumn, ...]) -> tuple[int, ...]:
    index_of = {column.name.lower(): index for index, column in enumerate(columns)}
    return tuple(index_of[name.lower()] for name in names if name.lower() in index_of)


class _Bounds:
    """The bounds of a sample for each of ``tables``."""

    def __init__(self, tables: int):
        self.rows = min(SAMPLED_ROWS, _ALL_SAMPLED_ROWS // max(tables, 1))
        self.bytes = _ALL_SAMPLED_BYTES // max(tables, 1)


def _rows(
    connection: sqlite3.Connection, table: str, columns: tuple[TableColumn, ...], bounds: _Bounds
) -> tuple[Row, ...]:
    names = ", ".join(quote_identifier(column.name) for column in columns)
    rows = _bounded(
        connection.execute(f"SELECT {names} FROM {quote_identifier(table)} LIMIT ?", (bounds.rows + 1,)), bounds
    )
    if len(rows) <= bounds.rows:
        return tuple(rows)
    column_names = {column.name.lower() for column in columns}
    rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in column_names), None)
    random_rows: list[Row] = []
    if rowid is not None:
        random_rows = _bounded(_random_rows(connection, table, names, rowid, bounds.rows), bounds)
    return tuple(random_rows or rows[: bounds.rows])  # of a table without rowids, its first rows


def _bounded(rows: Iterator[tuple[Any, ...]], bounds: _Bounds) -> list[Row]:
    """The rows up to the first that cannot be read (a long value, a damaged page), with long values cut."""
    read_rows: list[Row] = []
    size = 0
    with suppress(sqlite3.Error):
        for row in rows:
            read_rows.append(tuple(value[:_MAX_LENGTH] if isinstance(value, str | bytes) else value for value in row))
            size += sum(len(value) for value in read_rows[-1] if isinstance(value, str | bytes))
            if size > bounds.bytes:
                break
    return read_rows


def _random_rows(connection: sqlite3.Connection, table: str, names: str, rowid: str, count: int) -> Iterator[Row]:
    """Rows at random rowids, because counting the rows of a large table takes seconds."""
    first, last = connection.execute(f"SELECT min({rowid}), max({rowid}) FROM {quote_identifier(table)}").fetchone()
    rng = random.Random(f"{table} {first} {last}")
    seek = f"SELECT {names}, {rowid} FROM {quote_identifier(table)} WHERE {rowid} >= ? ORDER BY {rowid} LIMIT 1"
    rowids: set[int] = set()
    for _ in range(2 * count):
        row = connection.execute(seek, (rng.randint(first, last),)).fetchone()
        if row[-1] not in rowids:
            rowids.add(row[-1])
            yield row[:-1]
        if len(rowids) == count:
            return


def quote_identifier(name: str) -> str:
    """A name as an SQL identifier.

    >>> quote_identifier('a "b"')
    '"a ""b\"""'
    """
    return '"' + name.replace('"', '""') + '"'
