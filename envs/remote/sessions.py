"""Many sessions of one server, in a thread with its own event loop, which answers pings while the caller is busy."""

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
from gagpo.envs.remote.exchange import CONNECT_SECONDS
from gagpo.envs.remote.protocol import MOST_BYTES, EpisodeFailed, Observed, ServerFailed, ServerFull, message, observed
from gagpo.envs.remote.server import Server
from gagpo.envs.tasks import Task

LOG = logging.getLogger("gagpo")

FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0  # seconds between attempts to connect, doubled each time
CLOSE_SECONDS = 2.0
RETRIED = (500, 502, 503, 504)  # statuses of a server that is starting


class SessionLost(ServerFailed):
    """The session ended or was dropped during a request.

    hung: the request missed its deadline.
    """

    def __init__(self, message: str, hung: bool = False):
        super().__init__(message)
        self.hung = hung


Outcome = Observed | ServerFailed  # SessionLost and EpisodeFailed end the episode, any other error means a lost server


class _Session:
    """A connection, and its current task."""

    def __init__(self, socket: Any):
        self.socket = socket
        self.task = Task("", "")
        self.turn = 0
        self.used = False  # it has begun an episode


class Sessions:
    """Carries out requests ``(operation, number, ...)`` of a pool, and answers each except ``release``.

    Sessions are reused. If the server admits fewer sessions than needed, episodes wait for one to end.

    answered: called with ``(number, outcome)`` in the thread of the loop.
    step_deadline: seconds for a step.
    reset_deadline: seconds for a reset, and to reconnect to a server that cannot be reached.
    """

    def __init__(
        self,
        server: Server,
        answered: Callable[[tuple[int, Outcome]], None],
        *,
        step_deadline: float,
        reset_deadline: float,
    ):
        self._server, self._answered = server, answered
        self._field = server.field
        self._step_deadline, self._reset_deadline = step_deadline, reset_deadline
        self._playing: dict[int, _Session] = {}
        self._carrying: dict[int, asyncio.Task[None]] = {}
        self._free: list[_Session] = []
        self._open, self._most = 0, 1 << 30  # sessions that are open or being opened, and that the server admits
        self._freed: asyncio.Condition
        self._missing = False  # the last attempt to connect failed, and a warning was logged
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="remote-sessions", daemon=True)
        self._thread.start()

    def ask(self, requests: Sequence[Request]) -> None:
        """Begin requests without waiting. May be called from any thread."""
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
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)  # a server may not respond
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
        """Keep the session of ``number`` for another episode; drop it during a request."""
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
            else:
                outcome = await self._step(number, *arguments)
        except ServerFailed as error:
            outcome = error
        except Exception as error:  # every request gets an answer
            outcome = SessionLost(f"{self._server.url}: {type(error).__name__}: {first_line(error)}")
        finally:
            self._carrying.pop(number, None)
        self._answered((number, outcome))

    async def _reset(self, number: int, name: str, seed: int | None) -> Observed:
        if (old := self._playing.pop(number, None)) is not None:  # the episode starts over
            self._drop(old)
        task = self._server.task(name)
        data = self._server.beginning(task, seed)
        while True:
            session = await self._session()
            again = session.used
            session.task, session.turn, session.used = task, 0, True
            self._playing[number] = session
            try:
                return await self._ask(number, session, "reset", data, self._reset_deadline)
            except ServerFull as error:
                self._give_up(number)
                if self._open == 0:
                    raise SessionLost(str(error)) from None
                if self._open < self._most:
                    LOG.warning("%s admits %d sessions; further episodes wait for them", self._server.url, self._open)
                self._most = self._open
            except SessionLost as error:
                # The server may have ended an idle session: try another.
                if not again or error.hung:
                    raise

    async def _step(self, number: int, action: str) -> Observed:
        session = self._playing.get(number)
        if session is None:
            raise SessionLost(f"{self._server.url}: the session has ended")
        session.turn += 1
        found = await self._ask(number, session, "step", {self._field: action}, self._step_deadline)
        if found.terminated or found.truncated:
            self._keep(self._playing.pop(number))
        return found

    async def _ask(self, number: int, session: _Session, kind: str, data: dict[str, Any], seconds: float) -> Observed:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(seconds):
                with suppress(ConnectionClosed):  # the server's last message may still be read
                    await session.socket.send(message(kind, data))
                raw = await session.socket.recv()
        except TimeoutError:
            self._give_up(number)
            raise SessionLost(f"{self._server.url}: {kind} took more than {seconds:g} s", hung=True) from None
        except (ConnectionClosed, OSError) as error:
            self._give_up(number)
            raise SessionLost(f"{self._server.url}: the session ended: {ascii_only(first_line(error))}") from None
        try:
            return observed(self._server.url, raw, session.task, session.turn)
        except (EpisodeFailed, ServerFull):
            raise
        except ServerFailed as error:
            self._give_up(number)
            raise SessionLost(str(error)) from None

    # Opening and ending -----------------------------------------------------------------------------------------------

    async def _session(self) -> _Session:
        """A free session, a new one, or the next to become free if the server admits no more."""
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
        """A connection, retried until ``reset_deadline``; an outage is logged once."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        class Connect(connect):
            """Does not follow redirects to other hosts."""

            def process_redirect(self, exc: Exception) -> Exception:
                return exc

        url, patience = self._server.url, self._reset_deadline
        address = f"ws{url.removeprefix('http')}/ws"
        wait, end = FIRST_WAIT, time.monotonic() + patience
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    proxy = dict[str, Any]() if self._server.proxies else {"proxy": None}
                    socket = await Connect(address, max_size=MOST_BYTES, compression=None, **proxy)
            except (OSError, WebSocketException, TimeoutError) as error:
                reason = ascii_only(first_line(error))
                if isinstance(error, InvalidStatus) and error.response.status_code not in RETRIED:
                    raise ServerFailed(f"{address}: {reason}") from None
            else:
                if self._missing:
                    LOG.warning("%s can be reached again", url)
                self._missing = False
                return socket
            if not self._missing:
                self._missing = True
                LOG.warning("%s cannot be reached, trying for %g s: %s", url, patience, reason)
            if time.monotonic() + wait > end:
                raise ServerFailed(f"{url} was not reached within {patience:g} s: {reason}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _give_up(self, number: int) -> None:
        """Drop the session of ``number`` during a request."""
        if (session := self._playing.pop(number, None)) is not None:
            self._drop(session)

    def _drop(self, session: _Session) -> None:
        self._open -= 1
        session.socket.transport.abort()  # no closing handshake: the server may not answer one
        self._tell_waiting()

    def _keep(self, session: _Session) -> None:
        self._free.append(session)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        async def tell() -> None:
            async with self._freed:
                self._freed.notify()

        self._loop.create_task(tell())
