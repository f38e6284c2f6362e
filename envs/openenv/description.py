"""What a server says about its environment before an episode: its splits, tasks, instructions and tools.

OpenEnv's Task API lists the tasks of a split. ``GET /gagpo`` is an addition of ``gagpo openenv``; a server without it
still works, with fewer facts. Every answer comes from another machine, so all of it is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gagpo.base.errors import InvalidArgument
from gagpo.base.exchange import ExchangeFailed, exchange, is_loopback, open_http
from gagpo.envs.openenv.errors import ServerFailed, ServerLost
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import Tool

DESCRIBE_SECONDS = 20.0
MAX_BYTES = 64_000_000  # of a list of tasks
MAX_TASKS = 1_000_000  # of a split
MAX_SPLITS = 100
MAX_ID = 500  # characters of a task's id


@dataclass(frozen=True)
class ServerDescription:
    """The environment of a server.

    name: in the addresses of the Task API; empty without one.
    splits: whose tasks the server lists; empty without a Task API.
    sends_states: whether a reset with ``training`` makes it send state keys.
    instructions, multiline, tools: as in :class:`gagpo.envs.base.TextEnv`.
    """

    name: str = ""
    splits: tuple[str, ...] = ()
    sends_states: bool = False
    instructions: str = ""
    multiline: bool = False
    tools: tuple[Tool, ...] = ()


async def describe(url: str) -> ServerDescription:
    """What the server at ``url`` says about itself; the defaults for what it does not say.

    Raises:
        ServerLost: it cannot be reached.
        ServerFailed: an answer is invalid.
    """
    facts = await _ask(url, "/gagpo")
    names = await _ask(url, "/list_environments")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    splits: tuple[str, ...] = ()
    if name:
        rows = await _ask(url, f"/{quote(name, safe='')}/splits")
        splits = tuple(_split_name(url, row) for row in rows) if isinstance(rows, list) else ()
    if len(set(splits)) != len(splits) or len(splits) > MAX_SPLITS:
        raise ServerFailed(f"splits must be at most {MAX_SPLITS} different names", key="splits", where=url)
    if not isinstance(facts, dict):
        return ServerDescription(name, splits)
    tools = facts.get("tools", [])
    return ServerDescription(
        name,
        splits,
        sends_states=True,
        instructions=_require(url, "instructions", facts.get("instructions", ""), str),
        multiline=_require(url, "multiline", facts.get("multiline", False), bool),
        tools=tuple(_tool(url, row) for row in _require(url, "tools", tools, list)),
    )


async def list_tasks(url: str, name: str, split: str) -> TaskSet:
    """The tasks of a split; ``source`` is a task's index at the server.

    Raises:
        ServerLost, ServerFailed: as :func:`describe`.
    """
    answer = await _ask(url, f"/{quote(name, safe='')}/tasks", {"split": split})
    rows = answer.get("tasks") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_TASKS:
        raise ServerFailed(f"split {split!r:.80} must be a list of at most {MAX_TASKS:,} tasks", where=url)
    tasks = [_task(url, split, index, row) for index, row in enumerate(rows)]
    try:
        return TaskSet(split, tasks, advice=f"{url} lists no task of this split.")
    except InvalidArgument as error:
        raise ServerFailed(error, where=url) from None


def _task(url: str, split: str, index: int, row: object) -> Task:
    """A row of ``gagpo openenv`` (id, type, digest, level), or any JSON value of another server.

    The task of another server is named by its ``id`` if it has one, else by its index.
    """
    fields: Mapping[str, Any] = row if isinstance(row, dict) else {}
    task_id = fields.get("id")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_ID:
        task_id = f"{split}-{index:07d}"
    content = json.dumps(row, sort_keys=True).encode()
    digest = fields.get("digest", hashlib.sha256(content).hexdigest()[:16])
    level = fields.get("level", 0)
    return Task(
        task_id,
        split,
        type=_require(url, "type", fields.get("type", ""), str),
        digest=_require(url, "digest", digest, str),
        source=str(index),
        level=_require(url, "level", level, int),
    )


def _split_name(url: str, row: object) -> str:
    name = row.get("name") if isinstance(row, dict) else row
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID:
        raise ServerFailed(f"a split must have a name, got {row!a:.80}", where=url)
    return name


def _tool(url: str, row: object) -> Tool:
    fields: Mapping[str, Any] = row if isinstance(row, dict) else {}
    try:
        return Tool(
            _require(url, "a tool's name", fields.get("name"), str),
            _require(url, "a tool's description", fields.get("description"), str),
            _require(url, "a tool's parameters", fields.get("parameters"), dict),
        )
    except InvalidArgument as error:
        raise ServerFailed(error, where=url) from None


def _require(url: str, name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ServerFailed(f"{name} must be of type {kind.__name__}, got {value!a:.40}", key=name, where=url)
    return value


async def _ask(url: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """The JSON of a successful answer; None if the server does not have this address."""
    method = "GET" if body is None else "POST"
    content = None if body is None else json.dumps(body).encode()
    try:
        async with open_http(proxies=not is_loopback(url)) as http:
            reply = await exchange(http, method, url + path, content, deadline=DESCRIBE_SECONDS, most=MAX_BYTES)
    except ExchangeFailed as error:
        raise ServerLost(error) from None
    if reply.status != 200:
        return None
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        if path.endswith("/tasks"):
            raise ServerFailed(f"did not answer with JSON: {reply.excerpt:.80}", where=f"{url}{path}") from None
        return None  # some servers answer every unknown address with a web page


def addresses(url: str) -> Sequence[str]:
    """The servers of an environment id, which separates them by commas.

    >>> addresses("http://a:8000, http://b:8000/")
    ['http://a:8000', 'http://b:8000']

    Raises:
        InvalidArgument: an address is missing, doubled or of another kind.
    """
    urls = [segment.strip().rstrip("/") for segment in url.split(",")]
    for address in urls:
        if not address.startswith(("http://", "https://")):
            raise InvalidArgument(
                f"each server must be http://HOST:PORT (got {address!r:.80})", where=f"environment {url!r:.80}"
            )
    if len(set(urls)) != len(urls):
        raise InvalidArgument("a server is named twice", where=f"environment {url!r:.80}")
    return urls
