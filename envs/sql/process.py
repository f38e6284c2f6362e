"""Runs the queries of agents in a separate query process.

Each worker has one, started by its first query and shared by all its environments. Queries are limited by steps and by
the CPU time of the query process, so a verdict does not depend on how busy the machine is. A query over its limit ends
the process, and the next query starts another.

This also applies to small generated databases, because limits inside SQLite are not enough: preparing a statement with
nested definitions can take unlimited time and memory without a step.
"""

from __future__ import annotations

import signal
from dataclasses import astuple
from typing import Any, cast

from gagpo.base.child import Child, ChildEnded, Shared
from gagpo.envs.sql.compare import Comparison
from gagpo.envs.sql.database import GOLD, MAX_SQL, BadDatabase, Bounds, Columns, Copy, Cost, QueryFailed, Row, Source

MEMORY = 2 * 2**30
"""Address space of a query process, in bytes."""
_TARGET = "gagpo.envs.sql.worker:main"


class QueryProcess:
    """Runs queries in a child process, which starts at the first query and again after :meth:`close`. Thread-safe.

    All methods can raise:
        QueryFailed: the query is wrong or exceeds a limit.
        BadDatabase: the database or its gold query is bad.
        ChildFailed: the process does not start or does not answer in time; not the fault of the query.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        # Importing the packages' __init__ would take a second.
        bare = ("gagpo", "gagpo.envs")
        self._child = Child(_TARGET, name="a query process", memory=memory, bare=bare)

    def tables(self, source: Source) -> Columns:
        return cast(Columns, self._ask(Bounds(), "tables", source))

    def run(self, source: Source, sql: str, bounds: Bounds, limit: int) -> tuple[list[str], list[Row]]:
        """The column names and the first ``limit`` rows of a result."""
        names, rows = self._ask(bounds, "run", source, _check_length(sql), limit, astuple(bounds))
        return names, rows

    def cost(self, source: Source, sql: str, bounds: Bounds) -> Cost:
        """The cost of a query with all its rows."""
        return Cost(*self._ask(bounds, "cost", source, _check_length(sql), astuple(bounds)))

    def copies(self, path: str, gold: str, count: int) -> list[int]:
        """The numbers of at most ``count`` perturbed copies of a file that can judge answers to the ``gold`` query."""
        return cast("list[int]", self._ask(GOLD, "copies", path, _check_length(gold), count))

    def agrees(
        self, sources: tuple[Source | Copy, ...], sql: str, gold: str, comparison: Comparison, bounds: Bounds
    ) -> list[bool]:
        """Whether ``sql`` and the ``gold`` query agree, for each database up to the first where they do not."""
        return cast(
            "list[bool]", self._ask(bounds, "agree", sources, _check_length(sql), gold, comparison, astuple(bounds))
        )

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._child.close()

    @property
    def process(self) -> int | None:
        """The id of the running process."""
        return self._child.process

    def _ask(self, bounds: Bounds, *request: Any) -> Any:
        # Wall time in seconds, for a process that does not answer at all: the CPU limits end a slow query earlier. A
        # busy machine may give the process only a twentieth of a core.
        timeout = 60 + 20 * (bounds.seconds + GOLD.seconds)
        for may_retry in (True, False):
            try:
                status, value = self._child.ask(request, timeout)
                break
            except ChildEnded as error:
                if error.status == -signal.SIGPROF:
                    raise QueryFailed("the query takes too long") from None
                if error.status == -signal.SIGXCPU:
                    raise BadDatabase(
                        "opening it and its gold query take too long", where=f"{request[1]!s:.200}"
                    ) from None
                if not may_retry:  # the first time, the cause may be outside the query
                    raise QueryFailed("the query ends the process that it runs in") from None
        if status == "fault":
            raise BadDatabase(value)
        if status == "failed":
            raise QueryFailed(value)
        return value


def _check_length(sql: str) -> str:
    if len(sql) > MAX_SQL:  # checked here, so that a query of gigabytes is not sent through the pipe
        raise QueryFailed(f"a query may have {MAX_SQL} characters")
    return sql


QUERIES = Shared(QueryProcess())
"""The query process of this process."""
