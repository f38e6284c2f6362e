"""An MCP server as a child process: started, listed, called and killed, each within a deadline.

The package ``mcp`` speaks the protocol. The process and the lines that go through its pipes are kept here, so that
whatever a server writes is bounded, and nothing that it starts in its process group outlives it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pydantic import JsonValue

from gagpo.base import interpreter
from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage, first_line
from gagpo.envs.tools import Tool

MOST_LINE = 4 * 2**20  # bytes of a message
MOST_ANSWER = 20_000  # characters of an answer that are shown
MOST_TOOLS, MOST_SCHEMA = 64, 20_000  # tools of a server, characters of what a tool says of itself
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV")
_PAGES = 20  # of a list of tools
_END_SECONDS = 5.0  # for killed processes and threads to end
T = TypeVar("T")


class ServerError(GagpoError):
    """The server does not start, does not answer in time, or says what the protocol does not have."""


class ToolAnswer(NamedTuple):
    """What a call was answered. refused: the server calls it an error."""

    text: str
    refused: bool


class ToolServer:
    """A running server. command: a program and its arguments; ``python`` is the one that runs this.

    start_seconds: until it has said hello and listed its tools. The server sees few variables of the environment, and
    no key among them. Raises :class:`ServerError` where it does not come up.
    """

    def __init__(self, command: Sequence[str], start_seconds: float = 20.0):
        _require_mcp()
        self.command = tuple(command)
        program, *arguments = command
        try:
            self._process = subprocess.Popen(
                interpreter.command(*arguments) if program == "python" else [program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ServerError(f"the MCP server {self._name} cannot be started: {first_line(error)}") from None
        self._loop = asyncio.new_event_loop()
        self._looping = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._looping.start()
        self._listener: threading.Thread | None = None
        self._closing = asyncio.Event()
        self._session: Any = None
        try:
            listed: asyncio.Future[Sequence[Any]] = self._loop.create_future()
            self._talk = asyncio.run_coroutine_threadsafe(self._converse(listed), self._loop)
            self.tools = [_tool(one) for one in self._await(_result(listed), start_seconds, "start")]
            if len(self.tools) > MOST_TOOLS:
                raise ServerError(f"the MCP server {self._name} has more than {MOST_TOOLS} tools")
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: Mapping[str, JsonValue], seconds: float = 10.0) -> ToolAnswer:
        """What the tool answers; :class:`ServerError` where nothing comes in time: the server is of no use then."""
        found = self._await(self._session.call_tool(name, dict(arguments)), seconds, f"answer a call of {name}")
        parts = [part.text if part.type == "text" else f"[{part.type}]" for part in found.content]
        text = "\n".join(parts).encode(errors="replace").decode()
        if len(text) > MOST_ANSWER:
            text = f"{text[:MOST_ANSWER]}\n[{len(text) - MOST_ANSWER:,} more characters]"
        return ToolAnswer(text, bool(found.is_error))

    def close(self) -> None:
        """Kill the server and all that it started; once more does no harm."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        with suppress(Exception):
            self._talk.result(_END_SECONDS)
        if self._listener is not None:  # first: a message that it hands on is taken only while the loop runs
            self._listener.join(_END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join(_END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        if not self._looping.is_alive():
            self._loop.close()

    @property
    def _name(self) -> str:
        return repr(" ".join(self.command)[:200])

    def _await(self, work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        """What ``work`` gives; its failure, whatever it is, is the server's."""
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return task.result(seconds)
        except TookTooLong:
            task.cancel()
            raise ServerError(f"the MCP server {self._name} did not {what} within {seconds:g} s") from None
        except Exception as error:
            ended = self._process.poll()
            inner = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            state = f"it ended with status {ended}" if ended is not None else first_line(inner)
            raise ServerError(f"the MCP server {self._name} did not {what}: {state}") from None

    async def _converse(self, listed: asyncio.Future[Sequence[Any]]) -> None:
        """Hold the session open until :meth:`close`; all of it in one task, as its scopes want."""
        import anyio
        from mcp import ClientSession
        from mcp.shared.message import SessionMessage

        heard, hearing = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        saying, said = anyio.create_memory_object_stream[SessionMessage](0)
        self._listener = threading.Thread(target=self._listen, args=(heard,), name="mcp listener", daemon=True)
        self._listener.start()
        speaker = asyncio.create_task(self._speak(said))
        try:
            async with ClientSession(hearing, saying) as session:
                await session.initialize()
                tools = []
                cursor: str | None = None
                for _ in range(_PAGES):
                    page = await session.list_tools(params=_page(cursor))
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor or len(tools) > MOST_TOOLS:
                        break
                self._session = session
                listed.set_result(tools)
                await self._closing.wait()
        except Exception as error:
            if not listed.done():
                listed.set_exception(error)
        finally:
            speaker.cancel()
            for stream in (heard, hearing, saying, said):
                stream.close()

    def _listen(self, heard: Any) -> None:
        """Hand every line of the server on, one at a time; a line that is too long is the last."""
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        stdout = self._process.stdout
        assert stdout is not None
        with suppress(Exception):  # the session or the process is gone: whoever waits is told by its deadline
            while line := stdout.readline(MOST_LINE + 1):
                if len(line) > MOST_LINE:
                    os.killpg(self._process.pid, signal.SIGKILL)
                    break
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError:
                    continue  # what is no message is none of ours
                asyncio.run_coroutine_threadsafe(heard.send(message), self._loop).result()
        with suppress(Exception):
            self._loop.call_soon_threadsafe(heard.close)

    async def _speak(self, said: Any) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        async for message in said:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            try:
                await asyncio.to_thread(_write, stdin, line.encode())
            except OSError:
                return


async def _result(future: asyncio.Future[T]) -> T:
    return await future


def _write(pipe: Any, data: bytes) -> None:
    pipe.write(data)
    pipe.flush()


def _page(cursor: str | None) -> Any:
    from mcp.types import PaginatedRequestParams

    return PaginatedRequestParams(cursor=cursor) if cursor else None


def _tool(listed: Any) -> Tool:
    """A listed tool as the world's own; what it says of itself is shown to a model, and bounded."""
    description = str(listed.description or "")
    size = len(description) + len(json.dumps(listed.input_schema))
    if size > MOST_SCHEMA:
        raise ServerError(f"tool {listed.name!r:.80} says more than {MOST_SCHEMA:,} characters of itself")
    try:
        return Tool(listed.name, description, {"type": "object", **listed.input_schema})
    except InvalidArgument as error:
        raise ServerError(f"an MCP server's tool cannot be offered: {error}") from None


@functools.lru_cache(maxsize=32)
def listed_tools(command: tuple[str, ...], start_seconds: float) -> tuple[Tool, ...]:
    """The tools of the server that ``command`` starts; it is asked once in a process, and ended."""
    server = ToolServer(command, start_seconds)
    server.close()
    return tuple(server.tools)


def _require_mcp() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingPackage("an MCP server needs the package mcp: pip install 'gagpo[mcp]'") from None
