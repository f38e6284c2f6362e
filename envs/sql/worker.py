"""The query process: it answers one request after another, each within its CPU time.

It is started without the __init__ of the packages, so it and what it imports use the standard library alone.
"""

from __future__ import annotations

import os
import resource
import signal
from collections import OrderedDict
from contextlib import suppress
from math import ceil
from typing import Any

from gagpo.base.child import Pipe
from gagpo.envs.sql.compare import agrees
from gagpo.envs.sql.database import GOLD, BadDatabase, Bounds, Database, QueryFailed, Result, Source

_OPEN = {str: 8, tuple: 256}  # files, each with its cache, and databases in memory
_REMEMBERED = 1_000_000  # bytes; results of gold queries up to this size are kept as long as their database is open


def main(pipe: Pipe) -> None:
    """Answer requests until the other side closes the ``pipe``.

    A request is ``(operation, source, ...)``; the answer is ``("ok", value)``, ``("failed", why)`` for a bad query, or
    ``("fault", why)`` for a bad database or gold query. A query that takes too long ends the process by SIGPROF;
    SIGXCPU limits everything else that it does.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
    kept = _Databases()
    pipe.send("ready")
    with suppress(EOFError, OSError):
        while True:
            answer = _answered(kept, pipe.receive())
            pipe.send(answer)
            if answer == _NO_MEMORY:
                return  # a fresh process has all its memory again


_NO_MEMORY = ("failed", "the query takes too much memory")


class _Databases:
    """The databases that were asked last, with the results of their gold queries."""

    def __init__(self) -> None:
        self._open: dict[type, OrderedDict[Any, tuple[Database, dict[str, Result]]]] = {
            kind: OrderedDict() for kind in _OPEN
        }

    def get(self, source: Source) -> Database:
        return self._get(source)[0]

    def _get(self, source: Source) -> tuple[Database, dict[str, Result]]:
        known, key = self._open[type(source)], _version(source)
        if key not in known:
            while len(known) >= _OPEN[type(source)]:
                known.popitem(last=False)[1][0].close()
            known[key] = (Database(source), {})
        known.move_to_end(key)
        return known[key]

    def gold(self, source: Source, sql: str) -> Result:
        database, known = self._get(source)
        if sql not in known:
            result = database.run(sql, GOLD)
            if result.cost.size > _REMEMBERED:
                return result
            known[sql] = result
        return known[sql]


def _version(source: Source) -> Any:
    """What a database is known by: a file that was written anew is another."""
    if not isinstance(source, str):
        return source
    try:
        file = os.stat(source)
    except OSError:
        return source
    return source, file.st_size, file.st_mtime_ns


def _answered(kept: _Databases, request: tuple[Any, ...]) -> tuple[str, Any]:
    operation, source, *arguments = request
    try:
        if operation == "tables":
            _limit_everything(Bounds())
            return "ok", kept.get(source).tables
        if operation in ("run", "cost"):
            result = _run(kept, source, *arguments)
            cost = (result.cost.steps, result.cost.seconds, result.cost.size)
            return "ok", cost if operation == "cost" else (result.names, result.rows)
        return "ok", _agree(kept, source, *arguments)
    except QueryFailed as error:
        return "failed", str(error)
    except BadDatabase as error:
        return "fault", str(error)
    except MemoryError:
        return _NO_MEMORY
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run(kept: _Databases, source: Source, sql: str, limit: int | None, bounds: tuple[int, float, int]) -> Result:
    most = Bounds(*bounds)
    _limit_everything(most)
    database = kept.get(source)
    signal.setitimer(signal.ITIMER_PROF, most.seconds)
    return database.run(sql, most, limit)


def _agree(
    kept: _Databases, sources: tuple[Source, ...], sql: str, gold: str, comparison: Any, bounds: tuple[int, float, int]
) -> list[bool]:
    """For each database in turn, up to the first that says no."""
    most = Bounds(*bounds)
    right: list[bool] = []
    for source in sources:
        _limit_everything(most)
        try:
            wanted = kept.gold(source, gold)
        except QueryFailed as error:
            raise BadDatabase(f"{source!s:.200}: its gold query fails: {error}") from None
        signal.setitimer(signal.ITIMER_PROF, most.seconds)
        right.append(agrees(gold, wanted, kept.get(source).run(sql, most), comparison))
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not right[-1]:
            break
    return right


def _limit_everything(bounds: Bounds) -> None:
    """Let the system end this process when opening, the gold query and the query together take far too long."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = ceil(used.ru_utime + used.ru_stime + 2 * GOLD.seconds + bounds.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
