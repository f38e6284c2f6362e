"""Hosts of environments on many nodes, asked in batches, as one pool with the contract of :mod:`gagpo.envs.pool.slots`.

A host that dies is replaced, and its episodes start over with ``restarted``, as those of a worker that died do.
"""

from __future__ import annotations

import logging
import marshal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gagpo.base.child import RestartBudget
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.tables import ascii_only
from gagpo.envs.pool import EnvironmentBroken, Event, Pool
from gagpo.envs.pool.slots import BasePool, Holder
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.saved import CannotRestore

LOG = logging.getLogger("gagpo")

EXCHANGE_SECONDS = 0.05  # how long an exchange waits for its slowest environment before it hands over what there is
LOOK_SECONDS = 1.0  # how long the hosts are waited for at most before deadlines are looked at
_OF_HOSTS = ("crashes", "hangs", "errors")  # counters that only hosts know; the others are counted here


class HostLost(GagpoError, RuntimeError):
    """A host died or does not answer."""


class HostsLost(GagpoError, RuntimeError):
    """Hosts died more often than they may be replaced."""


class PoolHost:
    """What runs in an actor on some node: one :class:`gagpo.envs.pool.Pool`, made at the first exchange.

    Plain values in bytes go in and out: what an environment returns makes nobody import or run anything.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], options: Mapping[str, Any]):
        self._settings = (env_id, dict(env_kwargs), dict(options))
        self._pool: Pool | None = None

    def exchange(self, batch: bytes) -> bytes:
        """Carry out requests ``(operation, slot, ...)``; the answer is ``(events, counters, saved)``, or an error.

        Events come when all requests so far are answered, or after a moment those that are there. saved: by slot, the
        tokens asked for, or why there is none.
        """
        try:
            if self._pool is None:
                env_id, kwargs, options = self._settings
                self._pool = open_pool(env_id, kwargs, **options)
            saved = {}
            for operation, slot, *arguments in marshal.loads(batch):
                if operation == "save":
                    saved[slot] = self._saved(slot)
                else:
                    getattr(self._pool, operation)(slot, *arguments)
            events = self._pool.wait(EXCHANGE_SECONDS, at_least=2**31)
            return marshal.dumps(([tuple(event) for event in events], self._pool.counters.as_dict(), saved))
        except GagpoError as error:
            return marshal.dumps(str(error))

    def _saved(self, slot: int) -> bytes | str:
        assert self._pool is not None
        try:
            return self._pool.save(slot)
        except CannotRestore as error:
            return str(error)

    def close(self) -> None:
        """End the environments."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class Connection(Protocol):
    """The way to one host."""

    def ask(self, batch: bytes) -> Any:
        """Begin an exchange; gives what the ``ready`` of the pool knows it by."""
        ...

    def answer(self, call: Any) -> bytes:
        """What came of a call that is ready; :class:`HostLost` where the host died."""
        ...

    def replace(self) -> None:
        """End the host, if it still lives, and start another in its place."""
        ...

    def close(self) -> None: ...


class _Host(Holder):
    """What is known of one host."""

    def __init__(self, connection: Connection):
        super().__init__()
        self.connection = connection
        self.call: Any = None
        self.since = 0.0
        self.counters: dict[str, int] = {}

    def send(self) -> None:
        """Begin an exchange, unless one is under way or there is nothing to ask or to wait for."""
        if self.call is None and (self.outbox or any(assignment.pending for assignment in self.held.values())):
            self.call, self.since = self.connection.ask(marshal.dumps(self.outbox)), time.monotonic()
            self.outbox.clear()


class ClusterPool(BasePool):
    """Steps environments at several hosts. For one thread only.

    ready: those of some calls, of any connections, that are ready, as soon as there is one, within so many seconds.
    deadline: seconds after which a host that does not answer an exchange is given up; an exchange never waits for its
    environments. restarts: how many hosts may be replaced in an hour.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        ready: Callable[[Sequence[Any], float], list[Any]],
        *,
        deadline: float = 120.0,
        restarts: int = 10,
    ):
        if not connections:
            raise InvalidArgument("a pool over a cluster needs at least one host")
        self._hosts = [_Host(connection) for connection in connections]
        super().__init__(self._hosts)
        self._wait_for, self._deadline, self._restarts = ready, deadline, RestartBudget(restarts)

    def flush(self) -> None:
        for host in self._hosts:
            host.send()

    @property
    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        """End all hosts; idempotent."""
        super().close()
        for host in self._hosts:
            host.connection.close()

    def _collect(self, end: float, block: bool) -> None:
        calls = [host.call for host in self._hosts if host.call is not None]
        seconds = max(0.0, min(LOOK_SECONDS, end - time.monotonic())) if block else 0.0
        done = self._wait_for(calls, seconds) if calls else []
        for host in self._hosts:
            # An answer that came just now counts, however late it is.
            if host.call is not None and host.call in done:
                self._receive(host)
            elif host.call is not None and time.monotonic() - host.since > self._deadline:
                self._replace(host, f"a host of environments did not answer within {self._deadline:g} s")

    def _receive(self, host: _Host) -> None:
        """Take the answer of a call."""
        call, host.call = host.call, None
        try:
            answer = host.connection.answer(call)
        except HostLost as error:
            self._replace(host, str(error))
            return
        found = marshal.loads(answer)
        if isinstance(found, str):
            self.close()
            raise EnvironmentBroken(found)
        events, counters, saved = found
        for name in _OF_HOSTS:  # what it has counted since its last answer
            setattr(self.counters, name, getattr(self.counters, name) + counters[name] - host.counters.get(name, 0))
        host.counters = counters
        for number, token in saved.items():
            if (assignment := host.held.get(number)) is not None and assignment.pending == "save":
                self._keep(assignment, token)
        for number, *answered in events:
            if (assignment := host.held.get(number)) is not None:
                self._deliver(assignment, Event(assignment.slot, *answered))

    def _replace(self, host: _Host, error: str) -> None:
        """Start another host in place of one that is lost, which counts as a crash; what it held starts over there."""
        self.counters.crashes += 1
        if not self._restarts.take():
            self.close()
            raise HostsLost(f"hosts of environments were lost too often (cluster.restarts); the last: {error}")
        LOG.warning("lost a host of environments, another takes its place: %s", ascii_only(error))
        host.call, host.counters = None, {}
        host.connection.replace()
        self._start_all_over(host, error)
