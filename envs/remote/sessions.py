"""Hundreds of sessions of one server at a time, in a thread with an event loop of its own.

The loop keeps answering the server's pings while its caller is busy with something else, so no session ends for that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gagpo.base.errors import first_line
from gagpo.base.tables import ascii_only
from gagpo.envs.pool.wire import Request
from gagpo.envs.remote.protocol import MOST_BYTES, Observed, ServerFailed, ServerFull, WorldFailed, message, observed
from gagpo.envs.remote.server import Server
from gagpo.envs.tasks import Task

LOG = logging.getLogger("gagpo")

CONNECT_SECONDS = 10.0  # that one attempt to reach the server may take
FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0  # seconds between attempts, twice as long each time
CLOSE_SECONDS = 2.0


class SessionLost(ServerFailed):
    """The session ended, or was given up, with a request under way."""

    hung = False


class SessionHung(SessionLost):
    """No answer within the deadline."""

    hung = True


Outcome = Observed | ServerFailed
"""What came of a request: an answer; SessionLost or WorldFailed, which cost the episode; else the server is lost."""

Answered = Callable[[int, Outcome], None]
"""Told a request's number and what came of it, in the thread of the loop."""


class _Session:
    """One connection, and the task it plays."""

    def __init__(self, socket: Any):
        self.socket = socket
        self.task: Task | None = None
        self.turn = 0
        self.used = False  # it has begun an episode


class Sessions:
    """Carries out requests ``(operation, number, ...)`` of a pool; every one but ``release`` is answered once.

    step_deadline, reset_deadline: seconds that a request may take at the server. patience: seconds for which a server
    that cannot be reached is tried again. A session serves one episode after another. Where a server admits fewer than
    are asked for, episodes wait for one to end.
    """

    def __init__(
        self, server: Server, answered: Answered, *, step_deadline: float, reset_deadline: float, patience: float
    ):
        self._server, self._answered = server, answered
        self._field = server.field
        self._step_deadline, self._reset_deadline, self._patience = step_deadline, reset_deadline, patience
        self._playing: dict[int, _Session] = {}
        self._carrying: dict[int, asyncio.Task[None]] = {}
        self._free: list[_Session] = []
        self._open, self._most = 0, 1 << 30  # sessions there are or are being opened, and that the server admits
        self._freed: asyncio.Condition
        self._missing = False  # the server was not reached at the last attempt, and that has been said
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="remote-sessions", daemon=True)
        self._thread.start()

    def ask(self, requests: Sequence[Request]) -> None:
        """Begin requests; from any thread, and at once."""
        if requests:
            self._loop.call_soon_threadsafe(self._take, list(requests))

    def close(self) -> None:
        """End all sessions, within seconds; idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    # In the thread of the loop ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._freed = asyncio.Condition()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        sessions = [*self._playing.values(), *self._free]
        closing = [asyncio.create_task(session.socket.close()) for session in sessions]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)  # a server need not take part
        for session in sessions:
            session.socket.transport.abort()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_SECONDS)

    def _take(self, requests: list[Request]) -> None:
        for operation, number, *arguments in requests:
            if operation == "release":
                self._release(number)
            else:
                self._carrying[number] = self._loop.create_task(self._carry(operation, number, arguments))

    def _release(self, number: int) -> None:
        """What the number holds serves another; with a request under way it is given up."""
        task, session = self._carrying.get(number), self._playing.pop(number, None)
        if task is not None and not task.done():
            task.cancel()
            if session is not None:
                self._drop(session)
        elif session is not None:
            self._keep(session)

    async def _carry(self, operation: str, number: int, arguments: list[Any]) -> None:
        outcome: Outcome
        try:
            if operation == "reset":
                outcome = await self._reset(number, *arguments)
            elif operation == "step":
                outcome = await self._step(number, *arguments)
            else:
                outcome = WorldFailed("a world on a server cannot be put back")
        except ServerFailed as error:
            outcome = error
        except Exception as error:  # never a request without an answer
            outcome = SessionLost(f"{self._server.url}: {type(error).__name__}: {first_line(error)}")
        finally:
            self._carrying.pop(number, None)
        self._answered(number, outcome)

    async def _reset(self, number: int, name: str, seed: int | None) -> Observed:
        if (old := self._playing.pop(number, None)) is not None:  # the episode starts over
            self._drop(old)
        task = self._server.task(name)
        while True:
            session = await self._session()
            again = session.used
            session.task, session.turn, session.used = task, 0, True
            self._playing[number] = session
            try:
                return await self._ask(
                    number, session, "reset", self._server.beginning(task, seed), self._reset_deadline
                )
            except ServerFull as error:
                self._give_up(number)
                if self._open == 0:
                    raise SessionLost(str(error)) from None
                if self._open < self._most:
                    LOG.warning("%s admits %d sessions; further episodes wait for them", self._server.url, self._open)
                self._most = self._open
            except SessionLost as error:
                # A session that lay idle may have been ended by the server long ago, which is nobody's fault.
                if not again or error.hung:
                    raise

    async def _step(self, number: int, action: str) -> Observed:
        session = self._playing.get(number)
        if session is None:
            raise SessionLost(f"{self._server.url}: the session is gone")
        session.turn += 1
        found = await self._ask(number, session, "step", {self._field: action}, self._step_deadline)
        if found.terminated or found.truncated:
            self._keep(self._playing.pop(number))  # others may wait for it
        return found

    async def _ask(self, number: int, session: _Session, kind: str, data: dict[str, Any], seconds: float) -> Observed:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(seconds):
                with suppress(ConnectionClosed):  # what the server said last may still be there to read
                    await session.socket.send(message(kind, data))
                raw = await session.socket.recv()
        except TimeoutError:
            self._give_up(number)
            raise SessionHung(f"{self._server.url}: {kind} took more than {seconds:g} s") from None
        except (ConnectionClosed, OSError) as error:
            self._give_up(number)
            raise SessionLost(f"{self._server.url}: the session ended: {ascii_only(first_line(error))}") from None
        try:
            return observed(self._server.url, raw, session.task, session.turn)
        except WorldFailed:
            raise
        except ServerFull:
            raise
        except ServerFailed as error:
            self._give_up(number)
            raise SessionLost(str(error)) from None

    # Opening and ending -----------------------------------------------------------------------------------------------

    async def _session(self) -> _Session:
        """A free session, a new one, or the next that becomes free where the server admits no more."""
        while True:
            if self._free:
                return self._free.pop()
            if self._open < self._most:
                self._open += 1
                try:
                    return _Session(await self._connected())
                except BaseException:
                    self._open -= 1
                    self._tell_waiting()
                    raise
            async with self._freed:
                await self._freed.wait_for(lambda: bool(self._free) or self._open < self._most)

    async def _connected(self) -> Any:
        """A connection, tried for again until the patience is over; an outage is said once, in one line."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        wait, end = FIRST_WAIT, time.monotonic() + self._patience
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    address, proxy = self._server.socket_url, True if self._server.proxies else None
                    socket = await connect(address, max_size=MOST_BYTES, compression=None, proxy=proxy)
            except (OSError, WebSocketException, TimeoutError) as error:
                reason = ascii_only(first_line(error))
            else:
                if self._missing:
                    LOG.warning("%s is back", self._server.url)
                self._missing = False
                return socket
            if not self._missing:
                self._missing = True
                LOG.warning("%s cannot be reached, trying for %g s: %s", self._server.url, self._patience, reason)
            if time.monotonic() + wait > end:
                raise ServerFailed(f"{self._server.url} was not reached for {self._patience:g} s: {reason}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _give_up(self, number: int) -> None:
        """End the session of ``number`` in the middle of something."""
        if (session := self._playing.pop(number, None)) is not None:
            self._drop(session)

    def _drop(self, session: _Session) -> None:
        self._open -= 1
        session.socket.transport.abort()  # no farewell: what is given up may never answer one
        self._tell_waiting()

    def _keep(self, session: _Session) -> None:
        session.task = None
        self._free.append(session)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        async def tell() -> None:
            async with self._freed:
                self._freed.notify()

        self._loop.create_task(tell())
