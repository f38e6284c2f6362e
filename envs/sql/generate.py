"""Generates seeded questions, each about its own small database."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from gagpo.envs.sql.database import Row, Table
from gagpo.envs.sql.domains import DOMAINS, UNSEEN, Domain, invent_domain
from gagpo.envs.sql.question import Question
from gagpo.envs.tasks import TaskSet

TYPES = ("count", "extreme", "lookup", "top", "join", "group", "above")
_ROWS = 12


@functools.lru_cache(maxsize=64)
def generate_questions(
    split: str, size: int, types: tuple[str, ...], seed: int, invent: bool = False
) -> tuple[TaskSet, dict[str, Question]]:
    """Generate ``size`` questions of a split, each about its own database.

    The rows depend on the split, so splits share no database and no result. ``unseen`` also has other tables.

    invent: each question has its own tables, with made-up names.
    """
    if split == "unseen":
        domain_names = [UNSEEN]
    else:
        domain_names = [name for name in DOMAINS if name != UNSEEN]
    questions = {}
    for number in range(size):
        rng = random.Random(f"{split} {number} {seed}")
        name = "invented" if invent else rng.choice(domain_names)
        question = _question(rng, name, rng.choice(types), split, number, seed)
        questions[question.id] = question
    return TaskSet(split, [question.task() for question in questions.values()]), questions


def _question(rng: random.Random, name: str, kind: str, split: str, number: int, seed: int) -> Question:
    stem = f"{name}-{split}-{number:05d}-{seed}"
    domain = DOMAINS[name] if name in DOMAINS else invent_domain(stem)
    parents, children = rows(domain, stem)
    text, gold, incomplete = _WRITERS[kind](rng, domain, parents, children)
    question_tables: tuple[str, ...] = (domain.child,)
    if " JOIN " in gold:
        question_tables = (domain.child, domain.parent)
    database = tables(domain, parents, children)
    task_id = f"{name}-{kind}-{split}-{number:05d}"
    return Question(task_id, split, kind, text, gold, question_tables, incomplete, database, domain=domain)


def rows(domain: Domain, stem: str) -> tuple[list[Row], list[Row]]:
    """The rows of both tables, seeded by ``stem``; amounts are unique, so that every superlative has one answer."""
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


def tables(domain: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[Table, ...]:
    """A database with these rows."""
    key = ("id", "INTEGER PRIMARY KEY")
    text = "TEXT NOT NULL"
    number = "INTEGER NOT NULL"
    link = (domain.link, f"{number} REFERENCES {domain.parent}(id)")
    columns = (key, ("name", text), (domain.category, text), (domain.amount, number), link)
    return (
        (domain.parent, (key, ("name", text), (domain.size, number)), tuple(parents)),
        (domain.child, columns, tuple(children)),
    )


# The kinds of questions: text, gold query, incomplete query -----------------------------------------------------------


def _count(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    value = rng.choice(sorted({row[2] for row in children}))
    base = f"SELECT COUNT(*) FROM {d.child}"
    return f"How many {d.child} have the {d.category} {value}?", f"{base} WHERE {d.category} = '{value}'", base


def _extreme(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    word, function = rng.choice([("highest", "MAX"), ("lowest", "MIN"), ("average", "AVG")])
    value = rng.choice(sorted({row[2] for row in children}))
    base = f"SELECT {function}({d.amount}) FROM {d.child}"
    text = f"What is the {word} {d.amount} of the {d.child} with {d.category} {value}?"
    return text, f"{base} WHERE {d.category} = '{value}'", base


def _lookup(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    name = rng.choice(children)[1]
    base = f"SELECT {d.amount} FROM {d.child}"
    return f"What is the {d.amount} of the {d.child_word} {name}?", f"{base} WHERE name = '{name}'", base


def _top(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    word, order = rng.choice([("highest", "DESC"), ("lowest", "ASC")])
    base = f"SELECT name FROM {d.child} ORDER BY {d.amount}"
    incomplete = f"SELECT name FROM {d.child} LIMIT 1"
    return f"Which {d.child_word} has the {word} {d.amount}?", f"{base} {order} LIMIT 1", incomplete


def _join(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    name = rng.choice([parent[1] for parent in parents if any(row[4] == parent[0] for row in children)])
    base = f"SELECT COUNT(*) FROM {d.child}"
    gold = f"{base} JOIN {d.parent} ON {d.child}.{d.link} = {d.parent}.id WHERE {d.parent}.name = '{name}'"
    return f"How many {d.child} belong to the {d.parent_word} {name}?", gold, base


def _group(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    gold = f"SELECT {d.category}, COUNT(*) FROM {d.child} GROUP BY {d.category}"
    return f"How many {d.child} are there of each {d.category}?", gold, f"SELECT COUNT(*) FROM {d.child}"


def _above(rng: random.Random, d: Domain, parents: Sequence[Row], children: Sequence[Row]) -> tuple[str, str, str]:
    amounts = sorted(row[3] for row in children)
    bound = amounts[rng.randrange(3, len(amounts) - 3)]
    word, operator = rng.choice([("above", ">"), ("below", "<")])
    base = f"SELECT name FROM {d.child}"
    text = f"List the names of the {d.child} with {d.amount} {word} {bound}."
    return text, f"{base} WHERE {d.amount} {operator} {bound}", base


_WRITERS = {
    "count": _count,
    "extreme": _extreme,
    "lookup": _lookup,
    "top": _top,
    "join": _join,
    "group": _group,
    "above": _above,
}
