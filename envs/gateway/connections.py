"""Connections to the gateway: limited for each program, so that no program takes the descriptors of the others.

A connection belongs to no episode until a request with a valid key arrives on it. The oldest connections without a key
are dropped first, so a flood of them displaces only itself. Each key gets a part of the descriptors, and its idle
connections are dropped first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gagpo.envs.gateway.messages import GatewayError

LOG = logging.getLogger("gagpo")
MAX_CONNECTIONS_PER_KEY = 128
MIN_CONNECTIONS_PER_KEY = 4
IDLE_SECONDS = 60.0  # without a request
GRACE_SECONDS = 2.0  # in which a client sends its first request; not dropped before that if there is room
SWEEP_SECONDS = 5.0
QUIET_SECONDS = 60.0  # between two warnings that connections cannot be accepted
_BACKLOG = 1024  # connections that the system queues while the event loop is busy

Address = tuple[str, int]


class Connections:
    """The open connections. For the thread of the event loop only.

    descriptors: that this process may open. Half of them are for connections.
    """

    def __init__(self, descriptors: int):
        self._room = max(16, descriptors // 2)
        self._quiet_until = 0.0
        self._by_address: dict[Address, Connection] = {}
        self._by_key: defaultdict[str, dict[Connection, None]] = defaultdict(dict)  # in the order of their requests
        self.backlog = max(16, min(_BACKLOG, descriptors // 8))
        """Connections that one round of the event loop accepts, and that the system queues."""

    def add(self, connection: Connection) -> None:
        """Register a connection without a key; may drop older ones."""
        self._by_address[connection.address] = connection
        unclaimed = self._by_key[""]
        unclaimed[connection] = None
        while len(unclaimed) > self._room // 2:
            oldest = next(iter(unclaimed))
            if oldest.idle_seconds < GRACE_SECONDS and len(self._by_address) <= self._room:
                break
            self.drop(oldest)

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        if self._by_address.get(connection.address) is connection:
            del self._by_address[connection.address]
        self._leave(connection)

    def claim(self, address: Address | None, key: str, keys: int) -> None:
        """Count the connection at ``address`` for ``key``, one of ``keys`` that are valid.

        Raises: GatewayError if the key has too many connections with a request under way.
        """
        connection = self._by_address.get(address) if address else None
        if connection is None:
            return
        self._leave(connection)
        connection.key = key
        connections = self._by_key[key]
        connections[connection] = None
        limit = max(MIN_CONNECTIONS_PER_KEY, min(MAX_CONNECTIONS_PER_KEY, self._room // 2 // max(1, keys)))
        for candidate in list(connections):
            if len(connections) <= limit:
                break
            if candidate is not connection and candidate.is_idle:
                self.drop(candidate)
        if len(connections) > limit:
            raise GatewayError(429, f"a program may have {limit} requests at a time: wait for their answers")

    def drop(self, connection: Connection) -> None:
        """End a connection without an answer."""
        self.remove(connection)
        if connection.transport is not None:
            connection.transport.abort()

    def sweep(self, seconds: float = IDLE_SECONDS) -> None:
        """Drop the connections that have been idle for ``seconds``."""
        for connection in list(self._by_address.values()):
            if connection.is_idle and connection.idle_seconds >= seconds:
                self.drop(connection)

    async def sweep_forever(self) -> None:
        """Drop idle connections until this is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's exception handler: one line instead of a traceback for each failed accept.

        After one, asyncio waits for a second before it accepts again; until then, idle connections are dropped.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and "accept" in str(context.get("message")):
            if loop.time() >= self._quiet_until:
                LOG.warning("the gateway cannot accept connections (%s); idle ones are closed", error)
                self._quiet_until = loop.time() + QUIET_SECONDS
            self.sweep(GRACE_SECONDS)
        else:
            LOG.error("the gateway's event loop: %s (%r)", context.get("message"), error)

    def _leave(self, connection: Connection) -> None:
        connections = self._by_key[connection.key]
        connections.pop(connection, None)
        if not connections:
            del self._by_key[connection.key]


class Connection(H11Protocol):
    """A connection that registers itself.

    key: of its last request, '' before one.
    address: of its client.
    """

    config: GatewayConfig
    key = ""
    address: Address = ("", 0)
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client or ("", 0)
        self._idle_since = self.loop.time()
        self.config.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.open_connections.remove(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way. One with incomplete headers does not count: its end may never come."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def idle_seconds(self) -> float:
        """Time since it was opened or since its last answer."""
        return self.loop.time() - self._idle_since


class GatewayConfig(uvicorn.Config):
    """uvicorn's settings, with the open connections of the server."""

    def __init__(self, app: Any, open_connections: Connections):
        self.open_connections = open_connections
        super().__init__(
            app,
            http=Connection,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=int(IDLE_SECONDS),
            backlog=open_connections.backlog,
        )
