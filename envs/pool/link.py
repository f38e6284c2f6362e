"""The pool's connections to its workers."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from contextlib import suppress

from gagpo.base.child import pack
from gagpo.envs.pool.fork_server import ForkServer
from gagpo.envs.pool.slots import Argument, Assignment, Holder
from gagpo.envs.pool.wire import Inbox

CLOSE_SECONDS = 5.0  # for environments to close before their worker is killed
_CHUNK = 1 << 16


class Link(Holder):
    """The requests of one worker, and the connection to its current process. No method blocks or raises."""

    def __init__(self, number: int, selector: selectors.BaseSelector):
        super().__init__()
        self.number = number
        self._selector = selector
        self.queue: deque[Assignment] = deque()  # of unanswered requests, oldest first

    def connect(self, connection: socket.socket, token: bytes) -> None:
        """Use the connection to a new process, whose messages carry the ``token``."""
        connection.setblocking(False)
        self._connection = connection
        self._inbox = Inbox(token)
        self._unsent = bytearray()
        self._interest = selectors.EVENT_READ
        self._selector.register(connection, self._interest, self)
        self.process: int | None = None  # the process id, known from its first message
        self.queue.clear()
        self.sent = 0  # requests of the queue that are sent
        self.since = time.monotonic()  # the latest time at which the worker began its current request

    @property
    def garbled(self) -> bool:
        """Whether invalid bytes arrived."""
        return self._inbox.garbled

    def request(self, assignment: Assignment, operation: str, *arguments: Argument) -> None:
        super().request(assignment, operation, *arguments)
        self.queue.append(assignment)

    def send(self) -> None:
        """Write as many bytes of the requests as the socket takes; the next call writes the rest."""
        if not self.outbox and not self._unsent:
            return
        if self.outbox:
            if self.process is not None and not self.sent:
                self.since = time.monotonic()
            self.sent = len(self.queue)
            self._unsent += pack(self.outbox)
            self.outbox.clear()
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the worker is dead, which receive() reports
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if interest != self._interest:
            self._selector.modify(self._connection, interest, self)
            self._interest = interest

    def receive(self) -> tuple[list[object], bool]:
        """The messages that have arrived, and whether the worker is alive."""
        messages: list[object] = []
        data = b"more"
        with suppress(BlockingIOError):
            while data and not self.garbled:
                try:
                    data = self._connection.recv(_CHUNK)
                except ConnectionResetError:
                    data = b""
                messages += self._inbox.take(data)
                if 0 < len(data) < _CHUNK:
                    break
        self.since = time.monotonic()
        return messages, bool(data) and not self.garbled

    def hang_up(self) -> socket.socket:
        """Tell the worker that no more requests come, so that it closes its environments, then the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._selector.modify(self._connection, selectors.EVENT_READ)
        return self._connection

    def close(self) -> None:
        with suppress(KeyError):  # Resources may have unregistered it
            self._selector.unregister(self._connection)
        self._connection.close()


class Resources:
    """The processes and connections of a pool, closed even if the pool is garbage-collected."""

    def __init__(self, fork_server: ForkServer):
        self.fork_server = fork_server
        self.selector = selectors.DefaultSelector()
        self.links: dict[int, Link] = {}  # by worker number, those with a process
        self.waker, self.woken = socket.socketpair()  # a byte written to the first ends a wait
        for end in (self.waker, self.woken):
            end.setblocking(False)
        self.selector.register(self.woken, selectors.EVENT_READ)
        self._owner = os.getpid()

    def close(self) -> None:
        """Let the workers close their environments, then kill what is left."""
        if os.getpid() != self._owner:  # a fork of the pool's process owns nothing
            return
        try:
            self._drain(time.monotonic() + CLOSE_SECONDS)
        finally:
            for link in self.links.values():
                link.close()
            self.selector.close()
            self.waker.close()
            self.woken.close()
            self.fork_server.close()

    def _drain(self, end: float) -> None:
        """Hang up on the running workers, and wait until they have closed their connections."""
        open_ = [link.hang_up() for link in self.links.values() if link.process is not None]
        while open_ and time.monotonic() < end:
            for key, _ in self.selector.select(end - time.monotonic()):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    data = connection.recv(_CHUNK)
                except OSError:
                    data = b""
                if not data:  # else a late answer, which is dropped
                    self.selector.unregister(connection)
                    if connection in open_:
                        open_.remove(connection)
