"""Runs the gold queries of data sets once: checks them, derives the bounds of their tasks, chooses hidden databases.

The results are stored in ``$GAGPO_DATA/sql`` (by default ``data/sql``), one line per query, because the gold queries of
some data sets take hours.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any, Generic, TypeVar

from gagpo.base.durable import append_line
from gagpo.base.errors import GagpoError
from gagpo.base.folders import data_folder
from gagpo.envs.sql.database import GOLD, MAX_STORED_LENGTH, STORED, BadDatabase, Cost, QueryFailed
from gagpo.envs.sql.perturb import VERSION
from gagpo.envs.sql.process import QUERIES
from gagpo.envs.sql.question import Question

_LOG_INTERVAL = 30.0  # seconds between two log lines


class BadSource(GagpoError, ValueError):
    """A folder is not in Spider's or BIRD's layout, or a row cannot be used; the message names the file and row."""


def check_golds(rows: Iterable[tuple[str, Question] | BadSource], hidden: int = 0) -> Iterator[Question | BadSource]:
    """The questions with bounds derived from their gold queries, or what is wrong with them.

    hidden: maximum number of hidden databases for a question; see :mod:`gagpo.envs.sql.copies`.
    """
    gold_costs = _GoldCosts()
    copy_numbers = _CopyNumbers()
    log_time = time.monotonic()
    try:
        for number, row in enumerate(rows):
            if time.monotonic() > log_time + _LOG_INTERVAL:
                log_time = time.monotonic()
                logging.getLogger(__name__).warning("ran %d gold queries", number)
            question = row if isinstance(row, BadSource) else _check(*row, gold_costs)
            if isinstance(question, Question) and hidden:
                question = replace(question, copies=_choose(question, hidden, copy_numbers))
            yield question
    finally:
        QUERIES.release(gold_costs)


def _check(place: str, question: Question, costs: _GoldCosts) -> Question | BadSource:
    path = question.database
    assert isinstance(path, str)
    key = _key(path, question.gold)
    cost = costs.values.get(key)
    if cost is None:
        try:
            cost = QUERIES.take(costs).cost(path, question.gold, GOLD)
        except BadDatabase as error:
            return BadSource(error, where=place)
        except QueryFailed as error:
            cost = str(error)
        costs.add(key, cost)
    if isinstance(cost, str):
        return BadSource(f"the gold query fails: {cost}", where=place)
    return replace(question, bounds=STORED.extended(cost))


def _choose(question: Question, hidden: int, numbers: _CopyNumbers) -> tuple[int, ...]:
    """The numbers of the copies that judge the answers to a question."""
    path = question.database
    assert isinstance(path, str)
    key = _key(path, question.gold, VERSION, hidden, sys.version_info[:2])
    copies = numbers.values.get(key)
    if copies is None:
        try:
            copies = QUERIES.take(numbers).copies(path, question.gold, hidden)
        except (BadDatabase, QueryFailed):  # it has too many tables, or its copies take too long
            copies = []
        finally:
            QUERIES.release(numbers)
        numbers.add(key, copies)
    return tuple(copies)


def _key(path: str, gold: str, *settings: object) -> str:
    """A hash of all that the result of a gold query depends on."""
    file = os.stat(path)
    absolute_path = os.path.abspath(path)
    sections = (
        absolute_path,
        file.st_size,
        file.st_mtime_ns,
        gold,
        sqlite3.sqlite_version,
        GOLD,
        MAX_STORED_LENGTH,
        *settings,
    )
    return hashlib.sha256(repr(sections).encode("utf-8", "replace")).hexdigest()[:24]


T = TypeVar("T")


class _StoredValues(Generic[T]):
    """Values by key, in a file of JSON lines. A killed process may leave half a line: that value is missing.

    file: its name in ``$GAGPO_DATA/sql``.
    """

    file: str

    def __init__(self) -> None:
        self._path = data_folder() / "sql" / self.file
        self.values: dict[str, T] = {}
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError, RecursionError):
                    key, value = json.loads(line)
                    self.values[str(key)] = self.decode(value)

    def decode(self, value: Any) -> T:
        """The value of a line; raises ValueError or TypeError for a wrong one."""
        raise NotImplementedError

    def encode(self, value: T) -> Any:
        return value

    def add(self, key: str, value: T) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, json.dumps([key, self.encode(value)]))
        self.values[key] = value


class _GoldCosts(_StoredValues[Cost | str]):
    """The cost of each gold query, or the reason why it fails."""

    file = "gold-queries.jsonl"

    def decode(self, value: Any) -> Cost | str:
        if isinstance(value, str):
            return value
        steps, seconds, size = value
        return Cost(int(steps), float(seconds), int(size))

    def encode(self, value: Cost | str) -> Any:
        return value if isinstance(value, str) else astuple(value)


class _CopyNumbers(_StoredValues[list[int]]):
    """The numbers of the hidden copies of each gold query."""

    file = "hidden-copies.jsonl"

    def decode(self, value: Any) -> list[int]:
        if not isinstance(value, list):
            raise TypeError(value)
        return [int(number) for number in value]
