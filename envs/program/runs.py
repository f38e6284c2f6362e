"""Runs of programs that are under way, each in a process of the pool's fork server.

The event loop waits for each run's answer on its connection, without blocking. It blocks in two places: up to
``SEND_SECONDS`` to send a run its task, and until the fork server has killed a run and everything that it started
(milliseconds; at most the fork server's 30 seconds).
"""

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
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.command import fits
from gagpo.envs.gateway.messages import Json
from gagpo.envs.pool.fork_server import ForkServer
from gagpo.envs.pool.wire import TOKEN_BYTES, MessageDecoder
from gagpo.envs.program.scratch import Scratch

START_SECONDS = 120.0  # for the first process, which imports the user's functions
SEND_SECONDS = 30.0


class RunResult(NamedTuple):
    """How a run ended.

    output: the end of its standard output.
    failure: what went wrong, '' if nothing did.
    """

    output: str
    failure: str


class Runs:
    """Starts and ends runs, all but the first in the thread of ``loop``.

    kwargs: of :class:`gagpo.envs.program.process.ProgramProcess`.
    memory: megabytes that a run may allocate; None for no limit.
    variables: all environment variables of the runs, apart from those that each run gets for itself.

    secret_columns, needs_token_ids: of the reward function, see :mod:`gagpo.envs.rewards.calls`.

    Raises: InvalidArgument if a function of the user cannot be imported.
    """

    def __init__(
        self, loop: AbstractEventLoop, kwargs: dict[str, Any], memory: int | None, variables: Mapping[str, str]
    ):
        target = "gagpo.envs.program.process:ProgramProcess"
        spec = EnvSpec("gagpo/ProgramProcess-v0", entry_point=target, order_enforce=False, disable_env_checker=True)
        self._loop = loop
        self._scratch = Scratch()
        self._server = ForkServer(spec, kwargs, memory, variables, self._scratch.place)
        self._numbers = itertools.count()
        self._connections: dict[int, socket.socket] = {}
        self.secret_columns: list[str] = []
        self.needs_token_ids = False
        failure = self._failure_to_start(bool(kwargs["reward"]))
        if failure:
            self.close()
            raise InvalidArgument(failure, where="gagpo/Program-v0")

    def _failure_to_start(self, has_reward_function: bool) -> str:
        """Why no run can start, from a first process, which also describes the reward function; '' if it starts."""
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            with self._server.fork(next(self._numbers), token) as connection:
                connection.settimeout(START_SECONDS)
                decoder = MessageDecoder(token)
                messages = decoder.take(connection.recv(1 << 16))  # its process, or an error
                if has_reward_function and [_result(message) for message in messages] == [None]:
                    Pipe(connection).send([("reset", 0, '{"describe": true}', None)], SEND_SECONDS)
                    (result,) = filter(None, map(_result, decoder.take(connection.recv(1 << 16))))
                    if result.failure:
                        return result.failure
                    columns, self.needs_token_ids = json.loads(result.output)
                    self.secret_columns = columns
        except (GagpoError, OSError, ValueError) as error:
            return f"the program's process does not start ({error})"
        match messages:
            case [(int(),)]:
                return ""
            case [(str(reason),)]:
                return reason
        return "the program's process does not start"

    def start(self, order: dict[str, Any], on_end: Callable[[RunResult], None]) -> int:
        """Begin a run and return its number; ``ended`` is called unless it is killed.

        order: ``variables`` of the run, the ``row`` of its task, and the ``transcript`` for a reward function.
        """
        number = next(self._numbers)
        token = secrets.token_bytes(TOKEN_BYTES)
        decoder = MessageDecoder(token)
        try:
            # No file for a reward function: other programs can read files, and its row contains the right answer.
            row = {} if "transcript" in order else order["row"]
            variables = {**order["variables"], **self._task_variables(number, row)}
            message = json.dumps({**order, "variables": variables}, ensure_ascii=False)
            connection = self._connections[number] = self._server.fork(number, token)
            Pipe(connection).send([("reset", 0, message, None)], SEND_SECONDS)
        except (GagpoError, OSError, ValueError, RecursionError) as error:
            self._scratch.drop(number)
            # Not at once: the caller does not have the run's number yet.
            self._loop.call_soon(on_end, RunResult("", f"it could not be started: {error}"))
            return number

        def read() -> None:
            data = b""
            with suppress(OSError):
                data = connection.recv(1 << 20)
            results = list(filter(None, map(_result, decoder.take(data))))
            if results or decoder.corrupt or not data:
                exit_description = self.kill(number)  # also ends processes that the program left behind
                on_end(results[0] if results else RunResult("", f"it ended with {exit_description}"))

        self._loop.add_reader(connection, read)
        return number

    def kill(self, number: int) -> str:
        """End a run and everything it started, and describe how it ended; does nothing for one that has ended."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return ""
        self._loop.remove_reader(connection)
        connection.close()
        try:
            return self._server.kill(number)
        except GagpoError as error:
            self._server.close()  # the next run starts another
            return str(error)
        finally:
            self._scratch.drop(number)

    def close(self) -> None:
        """End all runs and remove their scratch folders; idempotent."""
        self._server.close()
        self._scratch.close()

    def _task_variables(self, number: int, row: Json) -> dict[str, str]:
        """Write the task's row into the scratch folder of a run; returns the variables that describe both."""
        text = json.dumps(row, ensure_ascii=False)
        folder, path = self._scratch.add(number, text)
        variables = {"TMPDIR": folder, "GAGPO_TASK_FILE": path}
        return {**variables, "GAGPO_TASK": text} if fits(f"GAGPO_TASK={text}") else variables


def _result(message: object) -> RunResult | None:
    """How a run ended, from its message; None for its first message, the id of its process."""
    match message:
        case (int(),):
            return None
        case (str(error),):
            return RunResult("", error)
        case (str(output), {"status": 0}):
            return RunResult(output, "")
        case (str(output), {"status": int(status), "errors": str(errors)}):
            cause = f"exit status {status}" if status > 0 else f"signal {-status}"
            return RunResult(output, f"it ended with {cause}: {' '.join(errors.split())[-300:]}")
    return RunResult("", "it sent an invalid answer")
