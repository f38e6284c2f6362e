"""A question to a database, with its gold query."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gagpo.envs.sql.database import Bounds, Source
from gagpo.envs.sql.domains import Domain
from gagpo.envs.tasks import Task

SPLITS = ("train", "validation", "test", "unseen")
JUDGED = 2  # version of what judges a generated question beside the database that is seen; part of its digest


@dataclass(frozen=True)
class Question:
    """``tables`` is what one has to look at to write the gold query.

    careless: a query that leaves out what the question asks besides the main thing. database: what the agent sees.
    bounds: what a query may take in this task. domain: what a generated database is about.
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
        """The digest is of all that is asked and seen, but of a file the name alone."""
        file = self.database if isinstance(self.database, str) else ""
        content = f"{self.text}\0{self.gold}\0{Path(file).name or (JUDGED, self.database)!r}"
        digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()
        return Task(self.id, self.split, self.type, digest[:16], file)
