"""An OpenEnv server as a ``gymnasium.Env``, so that `gagpo check URL` can hold it to the promises of an environment."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from gagpo.agents.api.exchange import ExchangeFailed, Reply, exchange, open_http
from gagpo.envs.base import Text
from gagpo.envs.errors import GagpoError, MissingPackage, first_line
from gagpo.envs.tasks import Task, TaskSet

Json = dict[str, Any]
"""What a server answers, as JSON holds it."""

Info = dict[str, Any]
"""What gymnasium calls ``info``."""

_TIMEOUT = 60.0
_MOST = 64 << 20  # bytes of an answer: long lists of tasks are honest


class ServerFailed(GagpoError):
    """The server cannot be reached, or does not speak OpenEnv."""


class RemoteEnv(gymnasium.Env[str, str]):
    """One session of a server whose episodes start by seed.

    An observation is what an agent would be shown: the field ``text`` where that is all there is, else all of it as
    JSON. An action fills the one field that the server's schema requires.
    """

    metadata: Info = {"render_modes": []}  # noqa: RUF012 (declared so by gymnasium.Env)

    def __init__(self, url: str):
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise MissingPackage("checking a server needs the package websockets; install the extra openenv") from None
        self._broken = WebSocketException
        self.observation_space, self.action_space = Text(), Text()
        self.url = url.rstrip("/")
        required = _object(_object(_ask(self.url, "/schema")).get("action")).get("required")
        self._field = str(required[0]) if isinstance(required, list) and required else "action"
        try:
            self._socket = connect("ws" + self.url.removeprefix("http") + "/ws", max_size=_MOST, open_timeout=_TIMEOUT)
        except (OSError, WebSocketException) as error:
            raise ServerFailed(f"{url}: {first_line(error)}") from None
        self._turn = -1  # no episode runs
        self._closed = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        given = {name: value for name, value in {"seed": seed, **(options or {})}.items() if value is not None}
        self._turn = 0
        answer = self._send("reset", given, ServerFailed)
        return _shown(answer), self._info(answer)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        answer = self._send("step", {self._field: action}, ResetNeeded if self._turn < 0 else ServerFailed)
        self._turn += 1
        truncated = bool(_object(answer.get("metadata")).get("truncated"))
        done = bool(answer.get("done"))
        info = self._info(answer)
        self._turn = -1 if done else self._turn
        return _shown(answer), self._reward(answer), done and not truncated, truncated, info

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.close()

    def _send(self, kind: str, data: Mapping[str, object], failure: type[Exception]) -> Json:
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = _object(json.loads(self._socket.recv(timeout=_TIMEOUT)))
        except (OSError, self._broken, ValueError, RecursionError) as error:
            raise ServerFailed(f"{self.url}/ws: {first_line(error)}") from None
        found = _object(answer.get("data"))
        if answer.get("type") != "observation":
            raise failure(str(found.get("message", answer))[:300])
        return found

    def _reward(self, answer: Json) -> float:
        reward = answer.get("reward") or 0.0
        if not isinstance(reward, int | float) or abs(reward) > 1e300 or math.isnan(reward):
            raise ServerFailed(f"{self.url}/ws: a reward of {reward!r:.40} is no finite number")
        return float(reward)

    def _info(self, answer: Json) -> Info:
        facts, seen = _object(answer.get("metadata")), answer.get("observation") or {}
        return {
            "turn": self._turn,
            "success": bool(facts.get("success", False)),
            "valid": bool(facts.get("valid", True)),
            "state": None,
            "admissible_actions": seen.get("admissible_actions") if isinstance(seen, dict) else None,
        }


class RemoteWorld(RemoteEnv):
    """A session of a server that lists its tasks (OpenEnv's ``TaskProvider``)."""

    def __init__(self, url: str, name: str):
        self.name = name
        super().__init__(url)
        self.splits = tuple(str(_object(split).get("name")) for split in _list(_ask(self.url, f"/{name}/splits")))
        self._task: Task | None = None
        self._known: dict[str, TaskSet] = {}

    def tasks(self, split: str) -> TaskSet:
        """The tasks that the server lists; a digest is the server's own, else that of all it says of the task."""
        if split not in self._known:
            listed = _list(_object(_ask(self.url, f"/{self.name}/tasks", {"split": split})).get("tasks"))
            self._known[split] = TaskSet(split, [_task(one, number, split) for number, one in enumerate(listed)])
        return self._known[split]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        gymnasium.Env.reset(self, seed=seed)  # before a task is drawn
        wanted = (options or {}).get("task")
        holders = [split for split in self.splits if wanted in self.tasks(split)]
        split = holders[0] if holders else self.splits[0]
        tasks = self.tasks(split)
        self._task = tasks[wanted] if wanted is not None else tasks.require().draw(self.np_random)
        return super().reset(seed=seed, options={"split": split, "index": _index(self._task)})

    def _info(self, answer: Json) -> Info:
        assert self._task is not None
        about = {"task": self._task.id, "task_type": self._task.type, "split": self._task.split}
        return {**about, **super()._info(answer)}


def remote(url: str) -> Callable[[], RemoteEnv]:
    """A function that opens a session, for ``gagpo.envs.check.check.check``; ServerFailed when nobody answers."""
    names = _list(_ask(url.rstrip("/"), "/list_environments", missing=[]))
    try:
        listed = bool(names) and bool(_ask(url.rstrip("/"), f"/{names[0]}/splits"))
    except ServerFailed:
        listed = False
    return (lambda: RemoteWorld(url, str(names[0]))) if listed else (lambda: RemoteEnv(url))


def _task(one: object, number: int, split: str) -> Task:
    about = one if isinstance(one, dict) else {"id": one}
    digest = str(about.get("digest") or hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16])
    name = str(about.get("id", f"{split}-{number}"))
    return Task(name, split, str(about.get("type", "")), digest, str(about.get("index", number)))


def _shown(answer: Json) -> str:
    seen = answer.get("observation")
    if isinstance(seen, dict) and isinstance(seen.get("text"), str) and set(seen) <= {"text", "admissible_actions"}:
        return str(seen["text"])
    return json.dumps(seen, sort_keys=True)


def _index(task: Task) -> int:
    if not task.source.isdecimal():
        raise ServerFailed(f"task {task.id!r:.80} has the index {task.source!r:.40}, which is no whole number")
    return int(task.source[:18])


def _object(value: object) -> Json:
    """The JSON object that a server should have sent; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _ask(url: str, path: str, body: Mapping[str, object] | None = None, missing: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        reply = asyncio.run(_exchanged(url + path, data))
        if missing is not None and reply.status in (404, 501):
            return missing
        if reply.status == 200:
            return json.loads(reply.body)
    except (ExchangeFailed, ValueError, RecursionError) as error:
        raise ServerFailed(f"{url}{path}: {first_line(error)}") from None
    raise ServerFailed(f"{url}{path}: status {reply.status}: {reply.said}")


async def _exchanged(url: str, data: bytes | None) -> Reply:
    async with open_http(proxies=True) as http:
        return await exchange(http, "GET" if data is None else "POST", url, data, deadline=_TIMEOUT, most=_MOST)
