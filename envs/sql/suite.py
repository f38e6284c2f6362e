"""The databases that judge the answer to a generated question: the one that the agent sees, and hidden ones.

They are a distilled test suite (Zhong, Yu and Klein, EMNLP 2020): rows are drawn at random until each mutant
(:mod:`gagpo.envs.sql.mutate`) differs from the gold query on one of the databases.
"""

from __future__ import annotations

import functools
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from gagpo.envs.sql.compare import same_result
from gagpo.envs.sql.database import Row, Source, columns_of, create
from gagpo.envs.sql.domains import Domain
from gagpo.envs.sql.generate import tables
from gagpo.envs.sql.mutate import mutants
from gagpo.envs.sql.question import Question

_MIN_DATABASES = 3  # databases; an unforeseen kind of wrong query is likely to fail on one of three
_DRAWS = 1_000


@functools.lru_cache(maxsize=1024)
def suite(question: Question) -> tuple[Source, ...]:
    """The database of a generated question, and enough others for each mutant to fail on one."""
    first = question.database
    gold = question.gold
    domain = question.domain
    assert not isinstance(first, str) and domain is not None
    schema = {name: [column for column, _ in columns] for name, columns in columns_of(first).items()}
    with closing(create(first)) as database:
        wrong_queries = [sql for _, sql in mutants(gold, schema, lambda sql: _result(database, sql))]
        wrong_queries = list(_passing(database, _result(database, gold), wrong_queries))
    rng = random.Random(repr((gold, first)))
    databases = [first]
    for _ in range(_DRAWS):
        if not wrong_queries and len(databases) >= _MIN_DATABASES:
            return tuple(databases)
        candidate = tables(domain, *_tempting_rows(domain, gold, rng))
        with closing(create(candidate)) as database:
            result = _result(database, gold)
            remaining = list(_passing(database, result, wrong_queries))
        if _is_informative(result) and (len(remaining) < len(wrong_queries) or not wrong_queries):
            databases.append(candidate)
            wrong_queries = remaining
    raise AssertionError(f"found no database on which {wrong_queries[:1]} differs from {gold!r}")


def _result(database: sqlite3.Connection, sql: str) -> list[Row]:
    """The result of a trusted query, without bounds."""
    return database.execute(sql).fetchall()


def _is_informative(result: Sequence[Row]) -> bool:
    """Whether there are rows, without zeros and nulls, which many wrong queries also give."""
    return bool(result) and all(value not in (0, None) for row in result for value in row)


def _passing(database: sqlite3.Connection, result: Sequence[Row], queries: Sequence[str]) -> Iterator[str]:
    """The ``queries`` that give the gold query's ``result`` here; no generated question asks for an order."""
    for sql in queries:
        with suppress(sqlite3.Error):  # some do not run
            if same_result(result, _result(database, sql), ordered=False):
                yield sql


def _tempting_rows(domain: Domain, gold: str, rng: random.Random) -> tuple[list[Row], list[Row]]:
    """Rows that meet the conditions of ``gold`` more often than random rows, with repeated names and amounts.

    Names of parents are unique, and so are the largest and the smallest amount: right queries may rely on it.
    """
    named_parents = [name for name in domain.parents if f"'{name}'" in gold]
    other_parents = [name for name in domain.parents if name not in named_parents]
    names = named_parents + rng.sample(other_parents, k=min(4, len(domain.parents)) - len(named_parents))
    rng.shuffle(names)
    parents: list[Row] = [(i + 1, name, rng.randint(*domain.size_range)) for i, name in enumerate(names)]
    values_in_query = [value for value in (*domain.children, *domain.categories) if f"'{value}'" in gold]
    bound = gold.rpartition(" ")[2] if " WHERE " in gold else ""
    low, high = domain.amount_range
    children: list[Row] = []
    for i in range(rng.randint(10, 18)):
        similar_row = rng.choice(children) if children and rng.random() < 0.5 else None
        name = rng.choice(domain.children)
        category = rng.choice(domain.categories)
        for value in values_in_query:  # at most one
            if rng.random() >= 0.4:
                continue
            if value in domain.children:
                name = value
            else:
                category = value
        if similar_row is not None and rng.random() < 0.5:
            name = similar_row[1]
        if similar_row is not None and rng.random() < 0.6:
            amount = similar_row[3]
        else:
            amount = rng.randrange(low, high)
        if bound.isdigit() and rng.random() < 0.4:
            limit = int(bound)
            if ">" in gold:
                amounts = [limit, limit + 1, rng.randint(limit, high)]
            else:
                amounts = [limit, limit - 1, rng.randint(low, limit)]
            amount = rng.choice(amounts)
        if named_parents and rng.random() < 0.4:
            parent = names.index(named_parents[0]) + 1
        else:
            parent = rng.randint(1, len(parents))
        children.append((i + 1, name, category, amount, parent))
    for extreme, step in ((min(row[3] for row in children), -1), (max(row[3] for row in children), 1)):
        i = next(i for i, row in enumerate(children) if row[3] == extreme)
        children[i] = (*children[i][:3], extreme + step, children[i][4])
    return parents, children
