"""The query process, in which the queries of agents run: only their answers come back.

Each process that plays has one, started by the first query and shared by all its environments. Steps and CPU time
limit a query, and the query process measures its own CPU time, so a verdict does not depend on how busy the machine
is. A query over its limit ends the process, and the next query starts another.

Queries to small generated databases go there too. No limit inside SQLite is enough: preparing a statement with nested
definitions that double takes as long as memory lasts, without a step.
"""

from __future__ import annotations

import signal
from dataclasses import astuple
from typing import Any, cast

from gagpo.base.child import Child, ChildEnded, Shared
from gagpo.envs.sql.compare import Comparison
from gagpo.envs.sql.database import GOLD, MAX_SQL, BadDatabase, Bounds, Columns, Cost, QueryFailed, Row, Source

MEMORY = 2 * 2**30
"""Address space of a query process, in bytes."""
_TARGET = "gagpo.envs.sql.worker:main"


class QueryProcess:
    """Runs queries in a child process. Thread-safe; starts when it is first asked, and again after :meth:`close`.

    Raises:
        QueryFailed: from any method, what is wrong with a query.
        BadDatabase: what is wrong with a database or its gold query.
        ChildFailed: the process does not start, or does not answer in time: the fault of the machine, not of a query.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        # Without the packages' __init__, which takes a second.
        bare = ("gagpo", "gagpo.envs")
        self._child = Child(_TARGET, name="a query process", memory=memory, bare=bare)

    def tables(self, source: Source) -> Columns:
        return cast(Columns, self._ask(Bounds(), "tables", source))

    def run(self, source: Source, sql: str, bounds: Bounds, limit: int) -> tuple[list[str], list[Row]]:
        """The names of the columns and the first ``limit`` rows of a result."""
        names, rows = self._ask(bounds, "run", source, _plain(sql), limit, astuple(bounds))
        return names, rows

    def cost(self, source: Source, sql: str, bounds: Bounds) -> Cost:
        """What the whole of a query takes."""
        return Cost(*self._ask(bounds, "cost", source, _plain(sql), None, astuple(bounds)))

    def agrees(
        self, sources: tuple[Source, ...], sql: str, gold: str, comparison: Comparison, bounds: Bounds
    ) -> list[bool]:
        """Whether ``sql`` gives what the ``gold`` query gives, in each database up to the first where it does not."""
        return cast("list[bool]", self._ask(bounds, "agree", sources, _plain(sql), gold, comparison, astuple(bounds)))

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._child.close()

    @property
    def process(self) -> int | None:
        """The id of the running process."""
        return self._child.process

    def _ask(self, bounds: Bounds, *request: Any) -> Any:
        patience = 60 + 20 * (bounds.seconds + GOLD.seconds)  # a twentieth of a core is enough
        for again in (True, False):
            try:
                kind, value = self._child.ask(request, patience)
                break
            except ChildEnded as ended:
                if ended.status == -signal.SIGPROF:
                    raise QueryFailed("the query takes too long") from None
                if ended.status == -signal.SIGXCPU:
                    raise BadDatabase(
                        f"{request[1]!s:.200}: opening it and running the gold query take too long"
                    ) from None
                if not again:  # the first time the reason may lie outside the query
                    raise QueryFailed("the query ends the process that it runs in") from None
        if kind == "fault":
            raise BadDatabase(value)
        if kind == "failed":
            raise QueryFailed(value)
        return value


def _plain(sql: str) -> str:
    if len(sql) > MAX_SQL:  # a longer one is not even sent
        raise QueryFailed(f"a query may have {MAX_SQL} characters")
    return sql


QUERIES = Shared(QueryProcess())
"""The query process of this process."""
