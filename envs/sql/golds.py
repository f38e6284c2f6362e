"""Runs the gold queries of data sets once, to check them and to derive the bounds of their tasks.

The costs are stored in ``$GAGPO_DATA/sql`` (by default ``data/sql``), one line per query, because the gold queries of
some data sets take hours.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, replace

from gagpo.base.durable import append_line
from gagpo.base.errors import GagpoError
from gagpo.base.folders import data_folder
from gagpo.envs.sql.database import GOLD, MAX_STORED_LENGTH, STORED, BadDatabase, Cost, QueryFailed
from gagpo.envs.sql.process import QUERIES
from gagpo.envs.sql.question import Question

_EVERY = 30.0  # seconds between two log lines


class BadSource(GagpoError, ValueError):
    """A folder is not in Spider's or BIRD's layout, or a row cannot be used; the message names the file and row."""


def check_golds(rows: Iterable[tuple[str, Question] | BadSource]) -> Iterator[Question | BadSource]:
    """The questions with bounds derived from their gold queries, or what is wrong with them."""
    costs, logged = _Costs(), time.monotonic()
    try:
        for number, row in enumerate(rows):
            if time.monotonic() > logged + _EVERY:
                logged = time.monotonic()
                logging.getLogger(__name__).warning("ran %d gold queries", number)
            yield row if isinstance(row, BadSource) else _check(*row, costs)
    finally:
        QUERIES.release(costs)


def _check(where: str, question: Question, costs: _Costs) -> Question | BadSource:
    path = question.database
    assert isinstance(path, str)
    key = _key(path, question.gold)
    cost = costs.known.get(key)
    if cost is None:
        try:
            cost = QUERIES.take(costs).cost(path, question.gold, GOLD)
        except BadDatabase as error:
            return BadSource(f"{where}: {error}")
        except QueryFailed as error:
            cost = str(error)
        costs.add(key, cost)
    if isinstance(cost, str):
        return BadSource(f"{where}: the gold query fails: {cost}")
    return replace(question, bounds=STORED.extended(cost))


def _key(path: str, gold: str) -> str:
    """A hash of all that the cost of a gold query depends on."""
    file, place = os.stat(path), os.path.abspath(path)
    parts = (place, file.st_size, file.st_mtime_ns, gold, sqlite3.sqlite_version, GOLD, MAX_STORED_LENGTH)
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:24]


class _Costs:
    """The stored cost of each gold query, or the reason why it fails."""

    def __init__(self) -> None:
        self._path = data_folder() / "sql" / "gold-queries.jsonl"
        self.known: dict[str, Cost | str] = {}
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        # A killed process may leave half a line: that query is run again.
        with suppress(ValueError, TypeError, RecursionError):
            key, value = json.loads(line)
            if not isinstance(value, str):
                steps, seconds, size = value
                value = Cost(int(steps), float(seconds), int(size))
            self.known[str(key)] = value

    def add(self, key: str, value: Cost | str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, json.dumps([key, value if isinstance(value, str) else astuple(value)]))
        self.known[key] = value
