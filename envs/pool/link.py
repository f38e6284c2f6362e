"""The pool's ends of the connections to its workers, and how all of them are closed."""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import suppress
from typing import Any

from gagpo.envs.pool.fork_server import ForkServer
from gagpo.envs.pool.wire import Inbox, pack

CLOSE_SECONDS = 5.0  # how long environments may take to close before their worker is killed
_CHUNK = 1 << 16


class Link:
    """The connection to one worker process, whose messages carry the ``token``. No method ever blocks or raises."""

    def __init__(self, connection: socket.socket, token: bytes, selector: selectors.BaseSelector, owner: Any):
        connection.setblocking(False)
        self._connection = connection
        self._selector = selector
        self._owner = owner  # what the selector shall name
        self._inbox = Inbox(token)
        self._unsent = bytearray()
        self._interest = selectors.EVENT_READ
        self.process: int | None = None  # the worker's id, known from its first message
        selector.register(connection, self._interest, owner)

    @property
    def clogged(self) -> bool:
        """Whether something waits until the worker reads."""
        return bool(self._unsent)

    @property
    def nonsense(self) -> bool:
        """Whether something arrived that is no message of this worker."""
        return self._inbox.nonsense

    def send(self, messages: list[tuple[Any, ...]]) -> None:
        """Write what the socket takes now of ``messages`` and of what was left; the rest follows at the next call."""
        if messages:
            self._unsent += pack(messages)
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the worker is dead, as receiving will tell
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if interest != self._interest:
            self._selector.modify(self._connection, interest, self._owner)
            self._interest = interest

    def receive(self) -> tuple[list[Any], bool]:
        """The messages that have arrived, and whether the worker still lives."""
        messages: list[Any] = []
        data = b"more"
        with suppress(BlockingIOError):
            while data and not self._inbox.nonsense:
                try:
                    data = self._connection.recv(_CHUNK)
                except ConnectionResetError:
                    data = b""
                messages += self._inbox.take(data)
                if 0 < len(data) < _CHUNK:
                    break
        return messages, bool(data) and not self._inbox.nonsense

    def hang_up(self) -> socket.socket:
        """Tell the worker that no more requests come; it closes its environments, and then its end."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._selector.modify(self._connection, selectors.EVENT_READ)
        return self._connection

    def close(self) -> None:
        with suppress(KeyError):  # Resources has unregistered it already
            self._selector.unregister(self._connection)
        self._connection.close()


class Resources:
    """The processes and connections of a pool, which must be closed even when the pool is forgotten."""

    def __init__(self, fork_server: ForkServer | None):
        self.fork_server = fork_server
        self.selector = selectors.DefaultSelector()
        self.links: dict[int, Link] = {}  # by worker number
        self._owner = os.getpid()

    def close(self) -> None:
        """Let the workers close their environments, then end what is left."""
        if os.getpid() != self._owner:  # a forked copy of the pool's process owns nothing
            return
        try:
            self._part(time.monotonic() + CLOSE_SECONDS)
        finally:
            for link in self.links.values():
                link.close()
            self.selector.close()
            if self.fork_server is not None:
                self.fork_server.close()

    def _part(self, end: float) -> None:
        """Say goodbye to the workers that are up, and wait until they have hung up too."""
        open_ = [link.hang_up() for link in self.links.values() if link.process is not None]
        while open_ and time.monotonic() < end:
            for key, _ in self.selector.select(end - time.monotonic()):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    data = connection.recv(_CHUNK)
                except OSError:
                    data = b""
                if not data:
                    self.selector.unregister(connection)
                    if connection in open_:
                        open_.remove(connection)
