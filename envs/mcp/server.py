"""An MCP server as a child process, with a deadline for every operation.

The ``mcp`` package is asynchronous, and environments are not. So each :class:`ToolServer` runs an event loop in a
thread, in which one task (:meth:`ToolServer._converse`) owns the process and the session. Three more tasks move bytes:
from the server's output to the session, from the session to the server's input, and standard error.

Who waits for whom: the environment's thread waits for futures of that loop, each with a deadline; a server that misses
one is closed and cannot be used again. The loop waits for the server without a deadline: ``close`` kills the process,
which ends all these waits.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from pydantic import JsonValue, ValidationError

from gagpo.base import interpreter
from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage, first_line
from gagpo.base.options import problems, sentence
from gagpo.envs.base import Outcome
from gagpo.envs.mcp.answers import answer_of, rejection_of, with_content
from gagpo.envs.tools import Tool

MAX_LINE = 4 * 2**20  # bytes of a message
MAX_TOOLS = 64  # of a server
MAX_SCHEMA = 20_000  # characters of a tool's description and schema, which are part of every prompt
MAX_LAST_WORDS = 300  # characters of the server's last words, for an error
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV")
_PAGES = 20  # of a list of tools
_END_SECONDS = 5.0  # for killed processes and threads to end
_REAP_SECONDS = 2.0  # for a killed process to be reaped
_SETTLE_SECONDS = 0.5  # for a server that closed its output to end
T = TypeVar("T")


class ServerError(GagpoError):
    """The server does not start, does not answer in time, or breaks the protocol."""


class ToolServer:
    """A running MCP server.

    The stdio client of ``mcp`` is not used: it does not limit lines, and leaves a dead server's children running.

    command: a program and its arguments; ``python`` is this interpreter. The program gets few of this process's
        environment variables, and no API key.
    start_timeout: deadline for the list of its tools.
    environment: names of further variables that the program gets.

    Raises:
        ServerError: it does not start in time, or its tools cannot be used.
    """

    def __init__(self, command: Sequence[str], start_timeout: float = 20.0, environment: Sequence[str] = ()):
        if find_spec("mcp") is None:
            raise MissingPackage(
                "an MCP server needs the package mcp", advice="pip install -c constraints.txt -e '.[mcp]'"
            )
        self.command = tuple(command)
        self._variables = {name: os.environ[name] for name in (*_INHERITED, *environment) if name in os.environ}
        self._name = repr(" ".join(command)[:200])
        self._process: asyncio.subprocess.Process | None = None
        self._session: Any = None
        self._close_requested = asyncio.Event()
        self._output_closed = False  # by the server: an error of the session is then not the server's answer
        self._last_output = bytearray()  # the end of standard error and of other lines than messages on standard output
        self._stderr_ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._loop_thread.start()
        tools_future: Future[Sequence[Any]] = Future()
        self._conversation = asyncio.run_coroutine_threadsafe(self._converse(tools_future), self._loop)
        try:
            self.tools = [_tool(server_tool) for server_tool in self._result(tools_future, start_timeout, "start")]
            names = [tool.name for tool in self.tools]
            if len(names) > MAX_TOOLS:
                raise ServerError(f"has more than {MAX_TOOLS} tools", where=f"the MCP server {self._name}")
            double = next((name for name in names if names.count(name) > 1), None)
            if double:
                raise ServerError(f"lists the tool {double!r} twice", where=f"the MCP server {self._name}")
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> int | None:
        """The id of the server's process, which leads a process group."""
        return self._process.pid if self._process is not None else None

    def call(self, name: str, arguments: Mapping[str, JsonValue], seconds: float = 10.0) -> Outcome:
        """The tool's answer; invalid if the call failed or was rejected with a JSON-RPC error.

        Raises:
            ServerError: the server ended, was late or broke the protocol, and cannot be used any more.
        """
        work = asyncio.run_coroutine_threadsafe(self._call(name, dict(arguments)), self._loop)
        return self._result(work, seconds, f"answer a call of {name}")

    async def _call(self, name: str, arguments: dict[str, JsonValue]) -> Outcome:
        from mcp import MCPError

        try:
            return answer_of(await self._session.call_tool(name, arguments, allow_input_required=True))
        except MCPError as error:
            # The package raises the same error for a lost connection, with a code that servers use as well.
            if self._output_closed:
                await self._settle()
                raise
            return rejection_of(error)

    def close(self) -> None:
        """Kill the server and everything it started; idempotent."""
        if self._loop.is_closed():
            return
        # The event alone would do for an idle server. The kill ends calls that it has not answered.
        self._kill()
        self._loop.call_soon_threadsafe(self._close_requested.set)
        with suppress(Exception):
            self._conversation.result(_END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join(_END_SECONDS)
        if not self._loop_thread.is_alive():
            self._loop.close()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _result(self, future: Future[T], seconds: float, task: str) -> T:
        """The result of ``work``; any error becomes a ServerError."""
        try:
            return future.result(seconds)
        except TookTooLong:
            future.cancel()
            message = f"the MCP server {self._name} did not {task} within {seconds:g} s"
            raise ServerError(f"{message}{self._last_words()}") from None
        except Exception as error:
            status = self._process.returncode if self._process is not None else None
            inner = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            state = _reason(inner) if status is None else f"it ended with status {status}"
            raise ServerError(f"the MCP server {self._name} did not {task}: {state}{self._last_words()}") from None

    async def _settle(self) -> None:
        """Give a silent server a moment to end and its last words to arrive; its children may keep its pipes open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._stderr_ended.wait()
                if self._process is not None:
                    await self._process.wait()

    def _last_words(self) -> str:
        """The end of what the server wrote besides messages, for an error; '' if it wrote nothing."""
        text = bytes(self._last_output).decode(errors="replace")
        tokens = "".join(letter if letter.isprintable() else " " for letter in text).split()
        return f"; its last words: {' '.join(tokens)[-MAX_LAST_WORDS:]}" if tokens else ""

    async def _converse(self, tools_future: Future[Sequence[Any]]) -> None:
        """Start the server and keep its session open until :meth:`close`.

        One task does all of it, because anyio's cancel scopes must be left by the task that entered them.
        """
        import anyio
        from mcp.shared.message import SessionMessage

        from gagpo.envs.mcp.session import LenientSession

        incoming_sender, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, outgoing_receiver = anyio.create_memory_object_stream[SessionMessage](0)
        pumps: list[asyncio.Task[None]] = []
        try:
            self._process = process = await self._start()
            if self._close_requested.is_set():  # close() was called while the process started, and could not kill it
                self._kill()
            pumps = [
                asyncio.create_task(work)
                for work in (
                    self._listen(process, incoming_sender),
                    _speak(process, outgoing_receiver),
                    self._read_stderr(process),
                )
            ]
            async with LenientSession(incoming, outgoing) as session:
                await session.initialize()
                tools = await _list_tools(session)
                self._session = session
                tools_future.set_result(tools)
                await self._close_requested.wait()
        except Exception as error:
            if self._output_closed:
                await self._settle()
            if tools_future.set_running_or_notify_cancel():
                tools_future.set_exception(error)
        finally:
            for pump in pumps:
                pump.cancel()
            for stream in (incoming_sender, incoming, outgoing, outgoing_receiver):
                stream.close()
            self._kill()
            if self._process is not None:
                await _reap(self._process)
                self._process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public method
                await self._process.wait()
                await asyncio.sleep(0)  # for the pipes to close

    async def _start(self) -> asyncio.subprocess.Process:
        program, *arguments = self.command
        return await asyncio.create_subprocess_exec(
            *(interpreter.command(*arguments) if program == "python" else self.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._variables,
            start_new_session=True,  # a process group of its own, which _kill ends with all that the server started
            limit=MAX_LINE,
        )

    async def _listen(self, process: asyncio.subprocess.Process, incoming_sender: Any) -> None:
        """Pass on the server's messages; kill it for a line of more than ``MAX_LINE`` bytes."""
        from mcp.shared.message import SessionMessage

        assert process.stdout is not None
        with suppress(OSError), closing(incoming_sender):
            try:
                while line := await process.stdout.readline():
                    try:
                        message = _message(line)
                    except (ValueError, RecursionError):  # not a message: often the reason why a server ends
                        self._keep(line)
                        continue
                    await incoming_sender.send(SessionMessage(with_content(message)))
            except ValueError:  # the line is too long
                self._kill()
            finally:
                self._output_closed = True  # before the stream closes, at which the session fails the pending calls

    def _keep(self, piece: bytes) -> None:
        """Remember the end of what the server writes besides messages."""
        self._last_output += piece[-4 * MAX_LAST_WORDS :]
        del self._last_output[: -4 * MAX_LAST_WORDS]

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Read all that the server writes on standard error, so that it never blocks, and keep the end."""
        assert process.stderr is not None
        try:
            while chunk := await process.stderr.read(1 << 16):
                self._keep(chunk)
        finally:
            self._stderr_ended.set()


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait until asyncio has the status of the killed process: closing its transport would take it, with a warning.

    ``process.wait`` may also wait for the pipes, which a child that left the process group keeps open.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            while process.returncode is None:
                await asyncio.sleep(0.005)


def _message(line: bytes) -> Any:
    """The JSON-RPC message in a line; what is not Unicode in its texts becomes U+FFFD.

    Raises: ValueError or RecursionError if it is not a message.
    """
    from mcp.types import jsonrpc_message_adapter

    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        # The parser of pydantic rejects a lone surrogate, which a server may send as an escape.
        text = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(re.sub("[\ud800-\udfff]", "\ufffd", text), by_name=False)


def _reason(error: BaseException) -> str:
    """What is wrong, on one line; for an invalid answer of the server, the first wrong key."""
    if not isinstance(error, ValidationError):
        return first_line(error)
    (key, message, _), *_ = problems(error)
    incomplete = error.errors()[0]["input"]
    name = incomplete.get("name") if isinstance(incomplete, dict) else None
    tool = f" (tool {name!r:.80})" if isinstance(name, str) else ""
    return f"its answer is invalid: {sentence(key, message):.200}{tool}"


async def _list_tools(session: Any) -> list[Any]:
    """The tools of a server, which lists them in pages; a server that never ends its list is cut off."""
    from mcp.types import PaginatedRequestParams

    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or len(tools) > MAX_TOOLS:
            break
    return tools


async def _speak(process: asyncio.subprocess.Process, outgoing_receiver: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        async for message in outgoing_receiver:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            process.stdin.write(line.encode())
            await process.stdin.drain()


def _tool(server_tool: Any) -> Tool:
    """A listed tool as a :class:`Tool`; its description is shown to a model, so its length is limited."""
    description = str(server_tool.description or "")
    size = len(description) + len(json.dumps(server_tool.input_schema))
    if size > MAX_SCHEMA:
        raise ServerError(f"tool {server_tool.name!r:.80} has a description of more than {MAX_SCHEMA:,} characters")
    try:
        return Tool(server_tool.name, description, {"type": "object", **server_tool.input_schema})
    except InvalidArgument as error:
        raise ServerError(f"a tool of the MCP server cannot be used: {error}") from None


@functools.lru_cache(maxsize=32)
def listed_tools(command: tuple[str, ...], start_timeout: float, environment: tuple[str, ...] = ()) -> tuple[Tool, ...]:
    """The tools of the server that ``command`` starts; cached for this process."""
    server = ToolServer(command, start_timeout, environment)
    server.close()
    return tuple(server.tools)
