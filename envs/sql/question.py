"""A question about a database, with its gold query."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gagpo.envs.sql.database import Bounds, Source
from gagpo.envs.sql.domains import Domain
from gagpo.envs.tasks import Task

SPLITS = ("train", "validation", "test", "unseen")
JUDGED = 3  # version of the hidden databases of generated questions; part of the digest


@dataclass(frozen=True)
class Question:
    """A question about a database.

    tables: the tables to look at to write the gold query.
    careless: a query that omits part of what the question asks for.
    database: the database that the agent sees.
    bounds: limits of the queries in this task.
    domain: subject of a generated database.
    """

    id: str
    split: str
    type: str
    text: str
    gold: str
    tables: tuple[str, ...]
    careless: str
    database: Source
    evidence: str = ""
    bounds: Bounds = Bounds()  # noqa: RUF009 (frozen)
    domain: Domain | None = None

    def task(self) -> Task:
        """The task; its digest covers the question, the gold query and the database, or the file's name."""
        file = self.database if isinstance(self.database, str) else ""
        content = f"{self.text}\0{self.gold}\0{Path(file).name or (JUDGED, self.database)!r}"
        digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()
        return Task(self.id, self.split, self.type, digest[:16], file)
