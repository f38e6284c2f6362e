"""Gold queries of released files are run before they are played: each must end within bounds, and says what it takes.

That is remembered in ``$GAGPO_DATA/sql`` (``data/sql``), a line per query, because some files hold hours of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from pathlib import Path

from gagpo.base.durable import append_line
from gagpo.base.errors import GagpoError
from gagpo.envs.sql.database import GOLD, MAX_STORED_LENGTH, STORED, BadDatabase, Cost, QueryFailed
from gagpo.envs.sql.process import QUERIES
from gagpo.envs.sql.question import Question

_EVERY = 30.0  # seconds between two words on how far it is


class BadSource(GagpoError, ValueError):
    """A folder that is neither Spider's nor BIRD's, or a row that cannot be used; the message names file and row."""


def checked(rows: Iterable[tuple[str, Question] | BadSource]) -> Iterator[Question | BadSource]:
    """The questions, each with the bounds that its gold query asks for, or with its place what is wrong with it."""
    book, told = _Book(), time.monotonic()
    try:
        for number, row in enumerate(rows):
            if time.monotonic() > told + _EVERY:
                told = time.monotonic()
                logging.getLogger(__name__).warning("%d gold queries have been run once", number)
            yield row if isinstance(row, BadSource) else _checked(*row, book)
    finally:
        QUERIES.release(book)


def _checked(where: str, question: Question, book: _Book) -> Question | BadSource:
    path = question.database
    assert isinstance(path, str)
    key = _key(path, question.gold)
    found = book.known.get(key)
    if found is None:
        try:
            found = QUERIES.take(book).cost(path, question.gold, GOLD)
        except BadDatabase as error:
            return BadSource(f"{where}: {error}")
        except QueryFailed as error:
            found = str(error)
        book.add(key, found)
    if isinstance(found, str):
        return BadSource(f"{where}: the gold query fails: {found}")
    return replace(question, bounds=STORED.beside(found))


def _key(path: str, gold: str) -> str:
    """What the cost of a gold query depends on."""
    file = os.stat(path)
    parts = (
        os.path.abspath(path),
        file.st_size,
        file.st_mtime_ns,
        gold,
        sqlite3.sqlite_version,
        GOLD,
        MAX_STORED_LENGTH,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:24]


class _Book:
    """What is known of gold queries: their cost, or why they fail."""

    def __init__(self) -> None:
        self._path = Path(os.environ.get("GAGPO_DATA") or "data") / "sql" / "gold-queries.jsonl"
        self.known: dict[str, Cost | str] = {}
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            key, value = json.loads(line)
            if not isinstance(value, str):
                steps, seconds, size = value
                value = Cost(int(steps), float(seconds), int(size))
            self.known[str(key)] = value
        except (ValueError, TypeError, RecursionError):
            pass  # half a line of somebody who was killed: that query is run again

    def add(self, key: str, value: Cost | str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, json.dumps([key, value if isinstance(value, str) else astuple(value)]))
        self.known[key] = value
