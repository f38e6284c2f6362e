"""The query process: where the queries of agents run, and from where nothing they do comes back but an answer.

There is one in each process that plays, made when the first query comes and shared by all its environments. What a
query may take is decided by steps and by processor time, which the query process measures for itself, so that a verdict
does not depend on how busy the machine is. A query that takes more ends that process, and the next one gets another.

Every query goes there, those to small generated databases too, although the way costs more than most of them. No bound
inside SQLite would do: a statement whose nested definitions double is prepared as long as memory lasts, without a step.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from gagpo.base.errors import GagpoError
from gagpo.envs.sql.compare import Comparison
from gagpo.envs.sql.database import GOLD, MAX_SQL, BadDatabase, Bounds, Columns, Cost, QueryFailed, Row, Source
from gagpo.envs.sql.worker import HEADER

_LONGEST_REPLY = 2 * GOLD.size
_START_SECONDS = 60.0
# The packages are entered without their initialisation, which takes a second. -I: nothing is imported from the working
# directory, nor from where variables of the environment say.
_BOOT = """
import importlib, sys, types
for name, path in (("gagpo", []), ("gagpo.envs", [sys.argv[1]])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
importlib.import_module("gagpo.envs.sql.worker").main()
"""


class QueryProcessFailed(GagpoError, RuntimeError):
    """The query process does not start, or does not answer in time: the fault of the machine, not of a query."""


class _Ended(Exception):
    """The query process has ended; ``status`` as ``subprocess`` gives it."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


class QueryProcess:
    """Runs queries elsewhere. Thread-safe; starts when it is first asked, and again after :meth:`close`.

    All methods raise :class:`QueryFailed` for what is wrong with a query, ``BadDatabase`` for what is wrong with a
    database or its gold query, and :class:`QueryProcessFailed`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

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
        with self._lock:
            self._end()

    def abandon(self) -> None:
        """Forget the process, which is that of the process this one was forked from."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.returncode = 0  # nobody here can wait for it
        self._process = self._connection = None

    @property
    def process(self) -> int | None:
        """The id of the running process."""
        return self._process.pid if self._process is not None else None

    def _ask(self, bounds: Bounds, *request: Any) -> Any:
        message = marshal.dumps(request)
        patience = 60 + 20 * (bounds.seconds + GOLD.seconds)  # a twentieth of a core is enough
        with self._lock:
            try:
                kind, value = self._answer(message, patience)
            except _Ended as ended:
                if ended.status == -signal.SIGPROF:
                    raise QueryFailed("the query takes too long") from None
                if ended.status == -signal.SIGXCPU:
                    raise BadDatabase(
                        f"{request[1]!s:.200}: opening it and running the gold query take too long"
                    ) from None
                raise QueryFailed("the query ends the process that it runs in") from None
        if kind == "fault":
            raise BadDatabase(value)
        if kind == "failed":
            raise QueryFailed(value)
        return value

    def _answer(self, message: bytes, patience: float) -> tuple[str, Any]:
        """The reply; asked for twice where the process ended for a reason that may have lain outside of the query."""
        for again in (True, False):
            try:
                connection = self._started()
                connection.settimeout(patience)
                connection.sendall(HEADER.pack(len(message)) + message)
                return cast("tuple[str, Any]", marshal.loads(_received(connection, time.monotonic() + patience)))
            except TimeoutError:
                self._end()
                raise QueryProcessFailed(f"a query process did not answer in {patience:.0f} s") from None
            except (EOFError, OSError):
                status = self._end(wait=True)
                if not again or status in (-signal.SIGPROF, -signal.SIGXCPU):
                    raise _Ended(status) from None
            except BaseException:  # an interrupt: the reply would be taken for that to the next request
                self._end()
                raise
        raise AssertionError

    def _started(self) -> socket.socket:
        if self._connection is None:
            self._connection, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).resolve().parents[1])],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                )
            self._connection.settimeout(_START_SECONDS)
            try:
                _received(self._connection, time.monotonic() + _START_SECONDS)
            except (EOFError, OSError) as error:
                status = self._end(wait=True)
                raise QueryProcessFailed(
                    f"a query process does not start: {str(error) or 'it ended'} ({status})"
                ) from None
        return self._connection

    def _end(self, wait: bool = False) -> int:
        """End the process, or let it end by itself if it is about to, and return its status."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return 0
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(5)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one in an uninterruptible wait must not hold up others
            return process.wait(5)
        return 0


def _plain(sql: str) -> str:
    if len(sql) > MAX_SQL:  # said here: a longer one is not even sent
        raise QueryFailed(f"a query may have {MAX_SQL} characters")
    return sql


def _received(connection: socket.socket, end: float) -> bytes:
    """One message; EOFError where there is none any more, TimeoutError at the time ``end``."""
    wanted, data = HEADER.size, bytearray()
    body = False
    while len(data) < wanted:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(min(wanted - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
        if not body and len(data) == wanted:
            wanted, body = HEADER.unpack(data)[0], True
            data.clear()
            if wanted > _LONGEST_REPLY:
                raise EOFError
    return bytes(data)


_shared = QueryProcess()
_users: WeakSet[object] = WeakSet()


def shared(user: object) -> QueryProcess:
    """The query process of this process, for ``user``; it ends when its last user releases it."""
    _users.add(user)
    return _shared


def release(user: object) -> None:
    """End the use of the shared query process; safe to call twice."""
    _users.discard(user)
    if not _users:
        _shared.close()


def _forget() -> None:
    global _shared
    _shared.abandon()
    _shared = QueryProcess()
    _users.clear()


atexit.register(lambda: _shared.close())
os.register_at_fork(after_in_child=_forget)
