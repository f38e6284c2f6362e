"""``gagpo/SQL-v0``: answer questions about a database with a query."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import checked_columns
from gagpo.envs.base import Kwargs, MarkovKey, Outcome, TextEnv
from gagpo.envs.sql.compare import Comparison
from gagpo.envs.sql.database import Columns, Copy, QueryFailed, Source, columns_of, show
from gagpo.envs.sql.generate import TYPES, generate_questions
from gagpo.envs.sql.perturb import NUMBERS
from gagpo.envs.sql.process import QUERIES
from gagpo.envs.sql.question import FIELDS, SPLITS, Question
from gagpo.envs.sql.sources import load_questions
from gagpo.envs.sql.suite import suite
from gagpo.envs.tasks import Task, TaskSet

_GENERATED = frozenset({"size", "test_size", "types", "seed", "tables"})  # arguments for generated questions only
_ACTION = re.compile(r"\s*(tables|columns|query:|answer:)(.*)\Z", re.DOTALL | re.IGNORECASE)


def _folder(data: str | Path | None) -> Path | None:
    """The folder of the questions; None for generated ones."""
    source = data or os.environ.get("SQL_DATA") or "generated"
    return None if source == "generated" else Path(source)


def _question_types(types: Sequence[str] | str) -> tuple[str, ...]:
    """The kinds of questions that the argument ``types`` names."""
    if types == "all":
        return TYPES
    names = (types,) if isinstance(types, str) else tuple(types)
    if not names:
        raise InvalidArgument("unknown type ()", advice=f"choose from {', '.join(TYPES)}")
    unknown = sorted(set(names) - set(TYPES))
    if unknown:
        raise InvalidArgument(f"unknown type {unknown[:1]}", advice=f"choose from {', '.join(TYPES)}")
    return names


class SQLEnv(TextEnv):
    """Answer a question about a database with a query; the reward is 1 if its result is that of the gold query.

    Actions are ``tables``, ``columns TABLE``, ``query: SELECT ...`` (shows the first rows) and ``answer: SELECT ...``,
    which ends the episode. An answer is also run on hidden databases with the same tables and other rows, so that a
    query that is right by chance does not pay. Those of generated questions are made so that the usual wrong queries
    fail; those of data files are perturbed copies in which the gold query has other results.

    data: ``"generated"``; a folder in Spider's or BIRD's format; a folder of SQLite files with a table of questions, or
        that table (:mod:`gagpo.envs.sql.question_tables`). By default ``$SQL_DATA`` if set, else generated.
    columns: names of the table's columns, such as ``{"question": "Q", "query": "SQL"}``.
    on_bad_row: ``refuse`` or ``skip`` (and count) unusable rows of the data files.
    size, test_size: number of generated questions in the training split, and in each other split.
    types: kinds of generated questions.
    seed: for the generated questions.
    tables: in the training split, ``listed`` asks about five pairs of tables; ``invented`` asks each question about its
        own tables with made-up names.
    rows: number of rows that a query shows.
    comparison: see :func:`gagpo.envs.sql.compare.agrees`.
    hidden: maximum number of hidden databases for a question of data files; 0 to compare with published numbers.

    ``info`` also holds ``queries``, and after an answer ``verdict``: right, wrong, wrong elsewhere, or failed.
    """

    splits: ClassVar[tuple[str, ...]] = SPLITS
    choosing: ClassVar[frozenset[str]] = _GENERATED | {"data", "columns", "on_bad_row"}
    has_imperfect: ClassVar[bool] = True
    markov_key: ClassVar[MarkovKey] = "state"
    multiline: ClassVar[bool] = True
    immaterial: ClassVar[frozenset[str]] = TextEnv.immaterial
    instructions: ClassVar[str] = (
        "You answer questions about an SQLite database. You act by one command at a time: tables lists the tables, "
        "columns TABLE shows the columns of one, query: SELECT ... runs a query and shows the first rows, "
        "answer: SELECT ... gives the query whose result is the answer, and ends the task."
    )

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 10,
        expert: bool | str = False,
        render_mode: str | None = None,
        data: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        size: int = 2000,
        test_size: int = 200,
        types: Sequence[str] | str = "all",
        seed: int = 0,
        tables: Literal["listed", "invented"] = "listed",
        rows: int = 5,
        comparison: Comparison = "exact",
        on_bad_row: Literal["refuse", "skip"] = "refuse",
        hidden: int = 3,
    ):
        super().__init__(split, max_turns, expert, render_mode)
        if size < 0 or test_size < 0 or rows < 1:
            raise InvalidArgument(
                f"size and test_size must be >= 0 and rows >= 1, got {size}, {test_size} and {rows}", key="size"
            )
        self.types = _question_types(types)
        if comparison not in get_args(Comparison):
            raise InvalidArgument(
                f"unknown comparison {comparison!r}", advice=f"choose from {', '.join(get_args(Comparison))}"
            )
        if on_bad_row not in ("refuse", "skip"):
            raise InvalidArgument(f"on_bad_row must be 'refuse' or 'skip', got {on_bad_row!r}", key="on_bad_row")
        if not 0 <= hidden <= NUMBERS:
            raise InvalidArgument(f"hidden must be between 0 and {NUMBERS}, got {hidden}", key="hidden")
        if tables not in ("listed", "invented"):
            raise InvalidArgument(f"tables must be 'listed' or 'invented', got {tables!r}", key="tables")
        self.folder = _folder(data)
        self.has_own_data = self.folder is not None
        self.columns = checked_columns(columns, FIELDS)
        if self.columns and self.folder is None:
            raise InvalidArgument(
                "columns: generated questions have none", key="columns", advice="name a folder with data=FOLDER"
            )
        self.tables = tables
        self.size = size
        self.test_size = test_size
        self.seed = seed
        self.rows = rows
        self.comparison = comparison
        self.on_bad_row = on_bad_row
        self.hidden = hidden
        self.question: Question | None = None
        self._tables: Columns | None = None
        self._facts: set[str] = set()
        self._inspected_tables: list[str] = []
        self._queries = 0
        self._verdict = ""

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        if _folder(kwargs.get("data")) is None:
            return frozenset({"hidden"})
        return _GENERATED

    @classmethod
    def preload(cls, **kwargs: Any) -> None:
        """Generate or check the questions before the pool forks its workers."""
        env = cls(**kwargs)
        env.tasks(env.split)

    def tasks(self, split: str) -> TaskSet:
        return self._source(split)[0]

    def _source(self, split: str) -> tuple[TaskSet, dict[str, Question]]:
        if split not in self.splits:
            raise InvalidArgument(f"no split {split!r}", advice=f"choose one of {', '.join(self.splits)}")
        if self.folder is not None:
            columns = tuple(sorted(self.columns.items()))
            return load_questions(self.folder, split, self.on_bad_row, self.hidden, columns)
        training = split == "train"
        size = self.size if training else self.test_size
        return generate_questions(split, size, self.types, self.seed, training and self.tables == "invented")

    def begin(self, task: Task) -> Outcome:
        self.question = self._source(task.split)[1][task.id]
        self._tables = None
        self._facts = set()
        self._inspected_tables = []
        self._queries = 0
        self._verdict = ""
        hint = f"\nHint: {self.question.evidence}" if self.question.evidence else ""
        return self._outcome(f"{self.question.text}{hint}")

    def act(self, action: str) -> Outcome:
        match = _ACTION.match(action)
        if match is None:
            return self._outcome("Say tables, columns TABLE, query: SELECT ... or answer: SELECT ...", valid=False)
        name = match[1].lower().rstrip(":")
        argument = match[2].strip()
        if name == "answer":
            return self._answer(argument)
        return {"tables": self._list, "columns": self._columns, "query": self._query}[name](argument)

    def _list(self, argument: str) -> Outcome:
        if argument:
            return self._outcome("Say tables, and nothing else.", valid=False)
        return self._fact(f"Tables: {', '.join(self._schema())}")

    def _columns(self, table: str) -> Outcome:
        tables = {name.lower(): name for name in self._schema()}
        name = tables.get(table.strip("\"'`[] ;").lower())
        if name is None:
            return self._outcome("There is no such table.", valid=False)
        self._inspected_tables.append(name)
        columns = ", ".join(f"{column} {type_name}".strip() for column, type_name in self._schema()[name])
        return self._fact(f"{name}: {columns}")

    def _query(self, sql: str) -> Outcome:
        question = self.question
        assert question is not None
        self._queries += 1
        try:
            names, rows = QUERIES.take(self).run(question.database, sql, question.bounds, self.rows + 1)
        except QueryFailed as error:
            return self._outcome(f"Error: {error}.", valid=False)
        return self._fact(show(names, rows, self.rows))

    def _answer(self, sql: str) -> Outcome:
        try:
            self._verdict = self._judge(sql)
        except QueryFailed as error:
            self._verdict = "failed"
            return self._outcome(f"Error: {error}.", terminated=True, valid=False)
        is_right = self._verdict == "right"
        text = "Right." if is_right else "Wrong."
        return self._outcome(text, reward=float(is_right), terminated=True, success=is_right)

    def _judge(self, sql: str) -> str:
        """The verdict on a query; raises QueryFailed if it does not run."""
        question = self.question
        assert question is not None
        sources: tuple[Source | Copy, ...]
        if self.folder is None:
            sources = suite(question)
        else:
            sources = (question.database, *question.hidden())
        agreements = QUERIES.take(self).agrees(sources, sql, question.gold, self.comparison, question.bounds)
        if all(agreements):
            return "right"
        return "wrong elsewhere" if agreements[0] else "wrong"

    def _schema(self) -> Columns:
        """The tables of the database that the agent sees."""
        assert self.question is not None
        source = self.question.database
        if self._tables is None:
            if isinstance(source, str):
                self._tables = QUERIES.take(self).tables(source)
            else:
                self._tables = columns_of(source)
        return self._tables

    def _fact(self, text: str) -> Outcome:
        self._facts.add(text)
        return self._outcome(text)

    def _outcome(
        self, text: str, reward: float = 0.0, terminated: bool = False, success: bool = False, valid: bool = True
    ) -> Outcome:
        """An outcome whose ``state`` is a hash of the question and the facts learned, in any order."""
        assert self.question is not None
        content = "\0".join([self.question.id, *sorted(self._facts), self._verdict])
        state = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]
        extras = {"queries": self._queries, "verdict": self._verdict}
        return Outcome(text, reward, terminated, success, valid, state, extras=extras)

    def expert_action(self) -> str | None:
        """Look at the tables that the gold query needs, one by one, then answer.

        The imperfect expert answers with a query that omits part of the question.
        """
        question = self.question
        assert question is not None
        remaining_tables = [table for table in question.tables if table not in self._inspected_tables]
        if remaining_tables and self.max_turns - self.turn > 1:
            return f"columns {remaining_tables[0]}"
        return f"answer: {question.incomplete if self.imperfect and question.incomplete else question.gold}"

    @property
    def reward_columns(self) -> Mapping[str, object]:
        assert self.question is not None
        return {"question": self.question.text, "query": self.question.gold, "answer": self.question.gold}

    def sample_action(self, rng: np.random.Generator) -> str:
        """A random command about a random table and column of this database."""
        tables = self._schema()
        table = str(rng.choice(sorted(tables))) if tables else "t"
        columns = [column for column, _ in tables.get(table, [])] or ["*"]
        sql = f'SELECT "{rng.choice(columns)}" FROM "{table}"'
        return str(rng.choice(["tables", f"columns {table}", f"query: {sql}", f"answer: {sql}"]))

    def close(self) -> None:
        QUERIES.release(self)
