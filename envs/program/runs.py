"""Runs of programs that are under way, each in a process of the pool's fork server."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gymnasium.envs.registration import EnvSpec

from gagpo.base.child import Pipe
from gagpo.base.errors import InvalidArgument
from gagpo.envs.pool.fork_server import ForkServer, ForkServerLost
from gagpo.envs.pool.wire import TOKEN_BYTES, Inbox

START_SECONDS, SEND_SECONDS = 120.0, 30.0


class Ended(NamedTuple):
    """How a run ended. failure: what went wrong, '' if nothing did."""

    output: str
    failure: str


class Runs:
    """Starts and ends runs, all but the first in the thread of ``loop``.

    kwargs: of :class:`gagpo.envs.program.process.ProgramProcess`.
    memory: megabytes that a run may allocate; None for no limit.

    Raises: InvalidArgument if a function of the user cannot be imported.
    """

    def __init__(self, loop: AbstractEventLoop, kwargs: dict[str, Any], memory: int | None):
        place = "gagpo.envs.program.process:ProgramProcess"
        spec = EnvSpec("gagpo/ProgramProcess-v0", entry_point=place, order_enforce=False, disable_env_checker=True)
        self._server, self._loop = ForkServer(spec, kwargs, memory), loop
        self._numbers = itertools.count()
        self._connections: dict[int, socket.socket] = {}
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._server.fork(next(self._numbers), token) as first:
            first.settimeout(START_SECONDS)
            said = Inbox(token).take(first.recv(1 << 16))  # its process, or an error
        failure = said[0][0] if said and isinstance(said[0], tuple) else "the program's process does not start"
        if isinstance(failure, str):
            self.close()
            raise InvalidArgument(f"gagpo/Program-v0: {failure}")

    def start(self, order: dict[str, Any], ended: Callable[[Ended], None]) -> int:
        """Begin a run and return its number; ``ended`` is called unless it is killed."""
        number, inbox = next(self._numbers), Inbox(token := secrets.token_bytes(TOKEN_BYTES))
        try:
            connection = self._connections[number] = self._server.fork(number, token)
            Pipe(connection).send([("reset", 0, json.dumps(order, ensure_ascii=False), None)], SEND_SECONDS)
        except (ForkServerLost, OSError) as error:
            self._loop.call_soon(ended, Ended("", f"it could not be started: {error}"))
            return number

        def read() -> None:
            data = b""
            with suppress(OSError):
                data = connection.recv(1 << 20)
            answers = [one for one in inbox.take(data) if isinstance(one, tuple) and not isinstance(one[0], int)]
            if answers or not data:
                how = self.kill(number)  # and what the program left behind
                ended(_ended(*answers[0]) if answers else Ended("", f"it ended with {how}"))

        self._loop.add_reader(connection, read)
        return number

    def kill(self, number: int) -> str:
        """End a run and everything it started, and describe how it ended; does nothing for one that has ended."""
        if (connection := self._connections.pop(number, None)) is None:
            return ""
        self._loop.remove_reader(connection)
        connection.close()
        try:
            return self._server.kill(number)
        except ForkServerLost as error:
            self._server.close()  # the next run starts another
            return str(error)

    def close(self) -> None:
        """End all runs; idempotent."""
        self._server.close()


def _ended(text: str, info: Mapping[str, Any] | None = None) -> Ended:
    """The answer of a run: its error alone, or its output with more about a command."""
    if info is None:
        return Ended("", text)
    status, errors = info["status"], " ".join(info.get("errors", "").split())[-300:]
    how = f"exit status {status}" if status > 0 else f"signal {-status}"
    return Ended(text, f"it ended with {how}: {errors}" if status else "")
