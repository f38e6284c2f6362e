"""The pool's end of the connections to its worker processes.

The pool's thread never blocks on a worker: sockets are non-blocking, requests are buffered here, and one selector waits
for all workers at once. So a worker that does not read its requests delays nobody, and a worker that does not answer
is noticed at its deadline.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from contextlib import suppress

from gagpo.base.child import pack
from gagpo.envs.pool.fork_server import ForkServer
from gagpo.envs.pool.slots import Argument, SlotEpisode, Worker
from gagpo.envs.pool.wire import MessageDecoder

CLOSE_SECONDS = 5.0  # for environments to close before their worker is killed
_CHUNK = 1 << 16


class ProcessWorker(Worker):
    """The requests of one worker, and the connection to its current process. No method blocks or raises."""

    def __init__(self, number: int, selector: selectors.BaseSelector):
        super().__init__()
        self.number = number
        self._selector = selector
        self.queue: deque[SlotEpisode] = deque()  # of unanswered requests, oldest first

    def connect(self, connection: socket.socket, token: bytes) -> None:
        """Use the connection to a new process, whose messages carry the ``token``."""
        connection.setblocking(False)
        self._connection = connection
        self._decoder = MessageDecoder(token)
        self._unsent = bytearray()
        self._interest = selectors.EVENT_READ
        self._selector.register(connection, self._interest, self)
        self.process: int | None = None  # the process id, known from its first message
        self.queue.clear()
        self.num_sent = 0  # requests at the head of the queue that are on their way or in work
        # The latest time at which the worker can have begun its current request, from which its deadline counts: when
        # the request was sent to an idle worker, or when the answer to the previous request arrived.
        self.request_started_at = time.monotonic()

    @property
    def corrupt(self) -> bool:
        """Whether invalid bytes arrived."""
        return self._decoder.corrupt

    def request(self, episode: SlotEpisode, operation: str, *arguments: Argument) -> None:
        super().request(episode, operation, *arguments)
        self.queue.append(episode)

    def send(self) -> None:
        """Write as many bytes of the requests as the socket takes; the next call writes the rest."""
        if not self.outbox and not self._unsent:
            return
        if self.outbox:
            if self.process is not None and not self.num_sent:
                self.request_started_at = time.monotonic()
            self.num_sent = len(self.queue)
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
            while data and not self.corrupt:
                try:
                    data = self._connection.recv(_CHUNK)
                except ConnectionResetError:
                    data = b""
                messages += self._decoder.take(data)
                if 0 < len(data) < _CHUNK:  # the socket is empty: saves a call that would only say so
                    break
        self.request_started_at = time.monotonic()
        return messages, bool(data) and not self.corrupt

    def hang_up(self) -> socket.socket:
        """Send the worker the end of its requests, so that it closes its environments and then the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._selector.modify(self._connection, selectors.EVENT_READ)
        return self._connection

    def close(self) -> None:
        with suppress(KeyError):  # PoolResources may have unregistered it
            self._selector.unregister(self._connection)
        self._connection.close()


class PoolResources:
    """The processes and connections of a pool.

    Separate from the pool, because its finalizer closes them and must not refer to the pool itself.
    """

    def __init__(self, fork_server: ForkServer):
        self.fork_server = fork_server
        self.selector = selectors.DefaultSelector()
        self.workers: dict[int, ProcessWorker] = {}  # those with a process, by their number
        # A byte from another thread ends the select() of the pool's thread: see WorkerPool.wake.
        self.wake_sender, self.wake_receiver = socket.socketpair()
        for deadline in (self.wake_sender, self.wake_receiver):
            deadline.setblocking(False)
        self.selector.register(self.wake_receiver, selectors.EVENT_READ)
        self._owner = os.getpid()

    def close(self) -> None:
        """Give the workers ``CLOSE_SECONDS`` to close their environments, then kill them with the fork server."""
        if os.getpid() != self._owner:
            # A fork of the pool's process runs finalizers too, and must not end the workers of its parent.
            return
        try:
            self._drain(time.monotonic() + CLOSE_SECONDS)
        finally:
            for worker in self.workers.values():
                worker.close()
            self.selector.close()
            self.wake_sender.close()
            self.wake_receiver.close()
            self.fork_server.close()

    def _drain(self, deadline: float) -> None:
        """Hang up on the running workers, and wait until they have closed their connections."""
        connections = [worker.hang_up() for worker in self.workers.values() if worker.process is not None]
        while connections and time.monotonic() < deadline:
            for key, _ in self.selector.select(deadline - time.monotonic()):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    data = connection.recv(_CHUNK)
                except OSError:
                    data = b""
                if not data:  # closed; otherwise it is a late answer, which is dropped
                    self.selector.unregister(connection)
                    if connection in connections:
                        connections.remove(connection)
