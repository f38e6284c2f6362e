"""A question about a database, with its gold query."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gagpo.envs.sql.database import Bounds, Copy, Source
from gagpo.envs.sql.domains import Domain
from gagpo.envs.sql.perturb import VERSION
from gagpo.envs.tasks import Task

SPLITS = ("train", "validation", "test", "unseen")
FIELDS = ("question", "query", "database", "evidence", "type", "split")
"""What a column of a table of questions can hold."""
SUITE_VERSION = 3  # version of the hidden databases of generated questions; part of the digest


@dataclass(frozen=True)
class Question:
    """A question about a database.

    tables: the tables to look at to write the gold query.
    incomplete: a query that omits part of what the question asks for.
    database: the database that the agent sees.
    bounds: limits of the queries in this task.
    copies: numbers of the perturbed copies of the file that also judge an answer; see :mod:`gagpo.envs.sql.copies`.
    domain: subject of a generated database.
    """

    id: str
    split: str
    type: str
    text: str
    gold: str
    tables: tuple[str, ...]
    incomplete: str
    database: Source
    evidence: str = ""
    bounds: Bounds = Bounds()  # noqa: RUF009 (frozen)
    copies: tuple[int, ...] = ()
    domain: Domain | None = None

    def task(self) -> Task:
        """The task; its digest covers the question, the gold query and what judges answers (of a file, its name)."""
        file = self.database if isinstance(self.database, str) else ""
        judged_by = (VERSION, Path(file).name) if file else (SUITE_VERSION, self.database)
        content = f"{self.text}\0{self.gold}\0{judged_by!r}"
        digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()
        return Task(self.id, self.split, self.type, digest[:16], file)

    def hidden(self) -> tuple[Copy, ...]:
        """The perturbed copies that judge the answers to a question about a file."""
        assert isinstance(self.database, str)
        return tuple((self.database, self.gold, number) for number in self.copies)
