"""Generated databases with questions: unlimited, seeded, and judged on a second database with other rows."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.envs import durable
from gagpo.envs.sql.domains import DOMAINS, UNSEEN, Domain
from gagpo.envs.tasks import Task, TaskSet

Entry = tuple[Any, ...]
"""One row of a table."""

SPLITS = ("train", "validation", "test", "unseen")
TYPES = ("count", "extreme", "lookup", "top", "join", "group", "above")
_SCHEMA = 1  # changes with what the generator makes, so that no old file is taken for a new one
_ROWS = 12


@dataclass(frozen=True)
class Question:
    """A question with its gold query; ``tables`` is what one has to look at to write it.

    careless: a query that leaves out what the question asks besides the main thing.
    """

    id: str
    split: str
    type: str
    text: str
    gold: str
    tables: tuple[str, ...]
    careless: str
    database: Path
    second: Path | None = None
    evidence: str = ""

    def task(self) -> Task:
        content = f"{self.text}\0{self.gold}\0{self.database.name}"
        return Task(self.id, self.split, self.type, hashlib.sha256(content.encode()).hexdigest()[:16])


def data_folder() -> Path:
    """Where generated databases are kept: ``$GAGPO_DATA/sql``, else ``data/sql`` here."""
    return Path(os.environ.get("GAGPO_DATA") or "data") / "sql"


@functools.lru_cache(maxsize=64)
def generated(split: str, size: int, types: tuple[str, ...], seed: int) -> tuple[TaskSet, dict[str, Question]]:
    """``size`` questions of a split, each about a database of its own.

    The rows of a database depend on its split, so no database and no result is shared; in ``unseen`` the tables are
    others too.
    """
    domains = [UNSEEN] if split == "unseen" else [name for name in DOMAINS if name != UNSEEN]
    questions = {}
    for number in range(size):
        rng = random.Random(f"{split} {number} {seed}")
        question = _question(rng, rng.choice(domains), rng.choice(types), split, number, seed)
        questions[question.id] = question
    return TaskSet(split, [question.task() for question in questions.values()]), questions


def _question(rng: random.Random, name: str, kind: str, split: str, number: int, seed: int) -> Question:
    domain = DOMAINS[name]
    stem = f"{name}-{split}-{number:05d}-{seed}"
    parents, children = rows(domain, stem)
    text, gold, careless = _WRITERS[kind](rng, domain, parents, children)
    tables = (domain.child, domain.parent) if " JOIN " in gold else (domain.child,)
    folder = data_folder()
    return Question(
        f"{name}-{kind}-{split}-{number:05d}",
        split,
        kind,
        text,
        gold,
        tables,
        careless,
        folder / f"{stem}-v{_SCHEMA}.sqlite",
        folder / f"{stem}-other-v{_SCHEMA}.sqlite",
    )


def rows(domain: Domain, stem: str) -> tuple[list[Entry], list[Entry]]:
    """The rows of both tables, drawn from ``stem``; amounts differ, so that every superlative has one answer."""
    rng = random.Random(f"rows {stem}")
    names = rng.sample(domain.parents, k=min(4, len(domain.parents)))
    parents = [(i + 1, name, rng.randint(*domain.size_range)) for i, name in enumerate(names)]
    amounts = rng.sample(range(*domain.amount_range), k=_ROWS)
    people = rng.sample(domain.children, k=_ROWS)
    children = [
        (i + 1, people[i], rng.choice(domain.categories), amounts[i], rng.randint(1, len(parents)))
        for i in range(_ROWS)
    ]
    return parents, children


def ensure(question: Question) -> None:
    """Make the database files of a generated question where they are missing; whole or not at all."""
    domain = DOMAINS[question.id.partition("-")[0]]
    for path in (question.database, question.second):
        if path is not None and not path.exists():
            _write(domain, path, path.name.removesuffix(f"-v{_SCHEMA}.sqlite"))


def _write(domain: Domain, path: Path, stem: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parents, children = rows(domain, stem)
    with durable.replacing(path, flushed=False) as part, contextlib.closing(sqlite3.connect(part)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # a file that was not finished is made again
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(f"CREATE TABLE {domain.parent} (id INTEGER PRIMARY KEY, name TEXT, {domain.size} INTEGER)")
        connection.execute(
            f"CREATE TABLE {domain.child} (id INTEGER PRIMARY KEY, name TEXT, {domain.category} TEXT, "
            f"{domain.amount} INTEGER, {domain.link} INTEGER REFERENCES {domain.parent}(id))"
        )
        connection.executemany(f"INSERT INTO {domain.parent} VALUES (?, ?, ?)", parents)
        connection.executemany(f"INSERT INTO {domain.child} VALUES (?, ?, ?, ?, ?)", children)
        connection.commit()


# The kinds of questions: text, gold query, careless query -------------------------------------------------------------


def _count(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    value = rng.choice(d.categories)
    base = f"SELECT COUNT(*) FROM {d.child}"
    return f"How many {d.plural} have the {d.category} {value}?", f"{base} WHERE {d.category} = '{value}'", base


def _extreme(
    rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]
) -> tuple[str, str, str]:
    word, function = rng.choice([("highest", "MAX"), ("lowest", "MIN"), ("average", "AVG")])
    value = rng.choice(sorted({row[2] for row in children}))
    base = f"SELECT {function}({d.amount}) FROM {d.child}"
    text = f"What is the {word} {d.amount} of the {d.plural} with {d.category} {value}?"
    return text, f"{base} WHERE {d.category} = '{value}'", base


def _lookup(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    name = rng.choice(children)[1]
    base = f"SELECT {d.amount} FROM {d.child}"
    return f"What is the {d.amount} of the {d.child_word} {name}?", f"{base} WHERE name = '{name}'", base


def _top(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    word, order = rng.choice([("highest", "DESC"), ("lowest", "ASC")])
    base = f"SELECT name FROM {d.child} ORDER BY {d.amount}"
    careless = f"SELECT name FROM {d.child} LIMIT 1"
    return f"Which {d.child_word} has the {word} {d.amount}?", f"{base} {order} LIMIT 1", careless


def _join(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    name = rng.choice(parents)[1]
    base = f"SELECT COUNT(*) FROM {d.child}"
    gold = f"{base} JOIN {d.parent} ON {d.child}.{d.link} = {d.parent}.id WHERE {d.parent}.name = '{name}'"
    return f"How many {d.plural} belong to the {d.parent_word} {name}?", gold, base


def _group(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    gold = f"SELECT {d.category}, COUNT(*) FROM {d.child} GROUP BY {d.category}"
    return f"How many {d.plural} are there of each {d.category}?", gold, f"SELECT COUNT(*) FROM {d.child}"


def _above(rng: random.Random, d: Domain, parents: Sequence[Entry], children: Sequence[Entry]) -> tuple[str, str, str]:
    amounts = sorted(row[3] for row in children)
    bound = amounts[rng.randrange(3, len(amounts) - 3)]
    word, sign = rng.choice([("above", ">"), ("below", "<")])
    base = f"SELECT name FROM {d.child}"
    text = f"List the names of the {d.plural} with {d.amount} {word} {bound}."
    return text, f"{base} WHERE {d.amount} {sign} {bound}", base


_WRITERS = {
    "count": _count,
    "extreme": _extreme,
    "lookup": _lookup,
    "top": _top,
    "join": _join,
    "group": _group,
    "above": _above,
}
