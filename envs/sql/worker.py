"""The query process: answers one request after another, each with a limit on CPU time.

It starts without the packages' ``__init__``, so this module and its imports use only the standard library.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
from collections import OrderedDict
from contextlib import suppress
from dataclasses import astuple
from math import ceil
from typing import Any, TypeGuard, cast

from gagpo.base.child import Pipe
from gagpo.envs.sql.compare import agrees
from gagpo.envs.sql.copies import choose
from gagpo.envs.sql.database import (
    GOLD,
    BadDatabase,
    Bounds,
    Copy,
    Cost,
    Database,
    OpenDatabase,
    QueryFailed,
    Result,
    Source,
)
from gagpo.envs.sql.perturb import perturb
from gagpo.envs.sql.structure import Sample, read_sample

# Databases kept open. A file has a page cache of up to 20 MB, so only a few stay open in 2 GiB of address space; the
# others are in memory and small.
_MAX_OPEN = {"file": 8, "tables": 256, "copy": 64}
_MAX_SAMPLES = 8  # of files, to make copies of
_COPYING = Bounds(seconds=30.0)  # to try the copies of a question
_MAX_CACHED_BYTES = 1_000_000  # bytes; smaller results of gold queries are cached while their database is open
_NO_MEMORY = ("failed", "the query takes too much memory")


def main(pipe: Pipe) -> None:
    """Answer requests until the other side closes ``pipe``.

    A request is ``(operation, source, ...)``; the answer is ``("ok", value)``, ``("failed", reason)`` for a bad query,
    or ``("fault", reason)`` for a bad database or gold query. A query that takes too long ends the process by SIGPROF;
    SIGXCPU limits everything else.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
    databases = _Databases()
    pipe.send("ready")
    with suppress(EOFError, OSError):
        while True:
            answer = _answer(databases, pipe.receive())
            pipe.send(answer)
            if answer == _NO_MEMORY:
                return  # a new process has all its memory again


class _Databases:
    """The databases used last, with the results of their gold queries."""

    def __init__(self) -> None:
        self._open: dict[str, OrderedDict[Any, tuple[Database, dict[str, Result]]]] = {
            source_type: OrderedDict() for source_type in _MAX_OPEN
        }
        self._samples: OrderedDict[Any, Sample] = OrderedDict()

    def get(self, source: Source | Copy) -> Database:
        return self._get(source)[0]

    def _get(self, source: Source | Copy) -> tuple[Database, dict[str, Result]]:
        source_type = _kind(source)
        key = _version(source)
        databases = self._open[source_type]
        if key not in databases:
            while len(databases) >= _MAX_OPEN[source_type]:
                databases.popitem(last=False)[1][0].close()
            databases[key] = (self._open_source(source), {})
        databases.move_to_end(key)
        return databases[key]

    def _open_source(self, source: Source | Copy) -> Database:
        if is_copy(source):
            return Database(self.copy(*source))
        return Database(cast(Source, source))

    def copy(self, path: str, gold: str, number: int) -> OpenDatabase:
        """A perturbed copy of a file."""
        key = _version(path)
        if key not in self._samples:
            while len(self._samples) >= _MAX_SAMPLES:
                self._samples.popitem(last=False)
            self._samples[key] = read_sample(path)
        self._samples.move_to_end(key)
        return perturb(self._samples[key], gold, number)

    def gold(self, source: Source | Copy, sql: str, bounds: Bounds = GOLD) -> Result:
        database, results = self._get(source)
        if sql in results:
            return results[sql]
        result = database.run(sql, bounds)
        if result.cost.size <= _MAX_CACHED_BYTES:
            results[sql] = result
        return result


def is_copy(source: Source | Copy) -> TypeGuard[Copy]:
    return isinstance(source, tuple) and bool(source) and isinstance(source[0], str)


def _kind(source: Source | Copy) -> str:
    if is_copy(source):
        return "copy"
    return "file" if isinstance(source, str) else "tables"


def _version(source: Source | Copy) -> Any:
    """A key of the database that changes when its file is rewritten, or a log with changes appears."""
    if is_copy(source):
        return (*source, _version(source[0]))
    if not isinstance(source, str):
        return source
    versions: list[tuple[int, int]] = []
    for path in (source, f"{source}-wal", f"{source}-journal"):
        with suppress(OSError):
            file = os.stat(path)
            versions.append((file.st_size, file.st_mtime_ns))
    return source, tuple(versions)


def _answer(databases: _Databases, request: tuple[Any, ...]) -> tuple[str, Any]:
    operation, source, *arguments = request
    try:
        if operation == "tables":
            _limit_process(Bounds())
            return "ok", databases.get(source).tables
        if operation == "run":
            result = _run(databases, source, *arguments)
            return "ok", (result.names, result.rows)
        if operation == "cost":
            return "ok", astuple(_cost(databases, source, *arguments))
        if operation == "copies":
            return "ok", _copies(databases, source, *arguments)
        return "ok", _agree(databases, source, *arguments)
    except QueryFailed as error:
        return "failed", str(error)
    except BadDatabase as error:
        return "fault", str(error)
    except MemoryError:
        return _NO_MEMORY
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run(databases: _Databases, source: Source, sql: str, limit: int | None, limits: tuple[int, float, int]) -> Result:
    bounds = Bounds(*limits)
    _limit_process(bounds)
    database = databases.get(source)
    signal.setitimer(signal.ITIMER_PROF, bounds.seconds)
    return database.run(sql, bounds, limit)


def _cost(databases: _Databases, source: Source, sql: str, limits: tuple[int, float, int]) -> Cost:
    bounds = Bounds(*limits)
    _limit_process(bounds)
    databases.get(source)
    signal.setitimer(signal.ITIMER_PROF, bounds.seconds)
    return databases.gold(source, sql, bounds).cost


def _copies(databases: _Databases, path: str, gold: str, count: int) -> list[int]:
    _limit_process(_COPYING)
    expected = databases.gold(path, gold)
    signal.setitimer(signal.ITIMER_PROF, _COPYING.seconds)
    return choose(gold, expected, functools.partial(databases.copy, path, gold), count)


def _agree(
    databases: _Databases,
    sources: tuple[Source | Copy, ...],
    sql: str,
    gold: str,
    comparison: Any,
    limits: tuple[int, float, int],
) -> list[bool]:
    """Whether the results agree, for each database up to the first where they do not."""
    bounds = Bounds(*limits)
    agreements: list[bool] = []
    for source in sources:
        _limit_process(bounds)
        try:
            expected = databases.gold(source, gold)
        except QueryFailed as error:
            raise BadDatabase(f"its gold query fails: {error}", where=f"{source!s:.200}") from None
        signal.setitimer(signal.ITIMER_PROF, bounds.seconds)
        agreements.append(agrees(gold, expected, databases.get(source).run(sql, bounds), comparison))
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not agreements[-1]:
            break
    return agreements


def _limit_process(bounds: Bounds) -> None:
    """Limit the CPU time of this process for opening the database, the gold query and the query together.

    Its signal is SIGXCPU, which the parent reports as a bad database. SIGPROF is armed for a single query and reported
    as a query that takes too long. The soft limit is set again for every request, from the CPU time used so far. It is
    in whole seconds, so it is rounded up, and one second more lets SIGPROF come first.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = ceil(usage.ru_utime + usage.ru_stime + 2 * GOLD.seconds + bounds.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
