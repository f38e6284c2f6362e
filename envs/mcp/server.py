"""An MCP server as a child process, with a deadline for every operation."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from pydantic import JsonValue

from gagpo.base import interpreter
from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage, first_line
from gagpo.envs.base import Outcome
from gagpo.envs.mcp.answers import answer_of, rejection_of, with_content
from gagpo.envs.tools import Tool

MOST_LINE = 4 * 2**20  # bytes of a message
MOST_TOOLS, MOST_SCHEMA = 64, 20_000  # tools of a server, characters of a tool's description and schema
MOST_LAST_WORDS = 300  # characters of the server's last words, for an error
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV")
_PAGES = 20  # of a list of tools
_END_SECONDS = 5.0  # for killed processes and threads to end
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
            raise MissingPackage("an MCP server needs the package mcp: pip install 'gagpo[mcp]'")
        self.command = tuple(command)
        self._variables = {name: os.environ[name] for name in (*_INHERITED, *environment) if name in os.environ}
        self._name = repr(" ".join(command)[:200])
        self._process: asyncio.subprocess.Process | None = None
        self._session: Any = None
        self._closing = asyncio.Event()
        self._silent = False  # the server has closed its output, so an error is not its answer
        self._words = bytearray()  # the last bytes of standard error, and of standard output what is not a message
        self._stderr_ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._looping = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._looping.start()
        listed: Future[Sequence[Any]] = Future()
        self._talk = asyncio.run_coroutine_threadsafe(self._converse(listed), self._loop)
        try:
            self.tools = [_tool(one) for one in self._result(listed, start_timeout, "start")]
            names = [tool.name for tool in self.tools]
            if len(names) > MOST_TOOLS:
                raise ServerError(f"the MCP server {self._name} has more than {MOST_TOOLS} tools")
            if double := next((name for name in names if names.count(name) > 1), None):
                raise ServerError(f"the MCP server {self._name} lists the tool {double!r} twice")
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
            if self._silent:
                await self._settle()
                raise
            return rejection_of(error)

    def close(self) -> None:
        """Kill the server and everything it started; idempotent."""
        if self._loop.is_closed():
            return
        self._kill()
        self._loop.call_soon_threadsafe(self._closing.set)
        with suppress(Exception):
            self._talk.result(_END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join(_END_SECONDS)
        if not self._looping.is_alive():
            self._loop.close()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _result(self, work: Future[T], seconds: float, what: str) -> T:
        """The result of ``work``; any error becomes a ServerError."""
        try:
            return work.result(seconds)
        except TookTooLong:
            work.cancel()
            late = f"the MCP server {self._name} did not {what} within {seconds:g} s"
            raise ServerError(f"{late}{self._last_words()}") from None
        except Exception as error:
            ended = self._process.returncode if self._process is not None else None
            inner = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            state = f"it ended with status {ended}" if ended is not None else first_line(inner)
            raise ServerError(f"the MCP server {self._name} did not {what}: {state}{self._last_words()}") from None

    async def _settle(self) -> None:
        """Give a silent server a moment to end and its last words to arrive; its children may keep its pipes open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._stderr_ended.wait()
                if self._process is not None:
                    await self._process.wait()

    def _last_words(self) -> str:
        """The end of what the server wrote besides messages, for an error; '' if it wrote nothing."""
        text = bytes(self._words).decode(errors="replace")
        words = "".join(letter if letter.isprintable() else " " for letter in text).split()
        return f"; its last words: {' '.join(words)[-MOST_LAST_WORDS:]}" if words else ""

    async def _converse(self, listed: Future[Sequence[Any]]) -> None:
        """Start the server and keep its session open until :meth:`close`, in one task as its scopes require."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp.types import PaginatedRequestParams

        from gagpo.envs.mcp.session import LenientSession

        heard, hearing = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        saying, said = anyio.create_memory_object_stream[SessionMessage](0)
        pumps: list[asyncio.Task[None]] = []
        try:
            program, *arguments = self.command
            self._process = process = await asyncio.create_subprocess_exec(
                *(interpreter.command(*arguments) if program == "python" else self.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._variables,
                start_new_session=True,
                limit=MOST_LINE,
            )
            if self._closing.is_set():  # while it started
                self._kill()
            pumps = [
                asyncio.create_task(work)
                for work in (self._listen(process, heard), _speak(process, said), self._read_stderr(process))
            ]
            async with LenientSession(hearing, saying) as session:
                await session.initialize()
                tools = []
                cursor: str | None = None
                for _ in range(_PAGES):
                    page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor or len(tools) > MOST_TOOLS:
                        break
                self._session = session
                listed.set_result(tools)
                await self._closing.wait()
        except Exception as error:
            if self._silent:
                await self._settle()
            if listed.set_running_or_notify_cancel():
                listed.set_exception(error)
        finally:
            for pump in pumps:
                pump.cancel()
            for stream in (heard, hearing, saying, said):
                stream.close()
            self._kill()
            if self._process is not None:
                self._process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public method
                await self._process.wait()
                await asyncio.sleep(0)  # for the pipes to close

    async def _listen(self, process: asyncio.subprocess.Process, heard: Any) -> None:
        """Pass on the server's messages; kill it for a line of more than ``MOST_LINE`` bytes."""
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        assert process.stdout is not None
        with suppress(OSError), closing(heard):
            try:
                while line := await process.stdout.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:  # not a message: often the reason why a server ends
                        self._keep(line)
                        continue
                    await heard.send(SessionMessage(with_content(message)))
            except ValueError:  # the line is too long
                self._kill()
            finally:
                self._silent = True  # before the session learns of the end, which fails the pending calls

    def _keep(self, piece: bytes) -> None:
        """Remember the end of what the server writes besides messages."""
        self._words += piece[-4 * MOST_LAST_WORDS :]
        del self._words[: -4 * MOST_LAST_WORDS]

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Read all that the server writes on standard error, so that it never blocks, and keep the end."""
        assert process.stderr is not None
        try:
            while piece := await process.stderr.read(1 << 16):
                self._keep(piece)
        finally:
            self._stderr_ended.set()


async def _speak(process: asyncio.subprocess.Process, said: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        async for message in said:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            process.stdin.write(line.encode())
            await process.stdin.drain()


def _tool(listed: Any) -> Tool:
    """A listed tool as a :class:`Tool`; its description is shown to a model, so its length is limited."""
    description = str(listed.description or "")
    size = len(description) + len(json.dumps(listed.input_schema))
    if size > MOST_SCHEMA:
        raise ServerError(f"tool {listed.name!r:.80} has a description of more than {MOST_SCHEMA:,} characters")
    try:
        return Tool(listed.name, description, {"type": "object", **listed.input_schema})
    except InvalidArgument as error:
        raise ServerError(f"a tool of the MCP server cannot be used: {error}") from None


@functools.lru_cache(maxsize=32)
def listed_tools(command: tuple[str, ...], start_timeout: float, environment: tuple[str, ...] = ()) -> tuple[Tool, ...]:
    """The tools of the server that ``command`` starts; cached for this process."""
    server = ToolServer(command, start_timeout, environment)
    server.close()
    return tuple(server.tools)
