"""An OpenEnv server as a ``gymnasium.Env``, so that `gagpo check URL` can hold it to the promises of an environment."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from gagpo.envs.base import Text
from gagpo.envs.errors import GagpoError, MissingPackage
from gagpo.envs.tasks import Task, TaskSet

Json = dict[str, Any]
"""What a server answers, as JSON holds it."""

Info = dict[str, Any]
"""What gymnasium calls ``info``."""

_TIMEOUT = 60.0


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
            from websockets.sync.client import connect
        except ImportError:
            raise MissingPackage("checking a server needs the package websockets; install the extra openenv") from None
        self.observation_space, self.action_space = Text(), Text()
        self.url = url.rstrip("/")
        required = (_ask(self.url, "/schema").get("action") or {}).get("required") or ["action"]
        self._field = str(required[0])
        try:
            self._socket = connect("ws" + self.url.removeprefix("http") + "/ws", max_size=None, open_timeout=_TIMEOUT)
        except OSError as error:
            raise ServerFailed(f"{url}: {error}") from None
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
        truncated = bool((answer.get("metadata") or {}).get("truncated"))
        done = bool(answer.get("done"))
        info = self._info(answer)
        self._turn = -1 if done else self._turn
        return _shown(answer), float(answer.get("reward") or 0.0), done and not truncated, truncated, info

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.close()

    def _send(self, kind: str, data: Mapping[str, object], failure: type[Exception]) -> Json:
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv(timeout=_TIMEOUT))
        if answer.get("type") != "observation":
            raise failure(str((answer.get("data") or {}).get("message", answer))[:300])
        return dict(answer["data"])

    def _info(self, answer: Json) -> Info:
        facts, seen = answer.get("metadata") or {}, answer.get("observation") or {}
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
        self.splits = tuple(str(split["name"]) for split in _ask(self.url, f"/{name}/splits"))
        self._task: Task | None = None
        self._known: dict[str, TaskSet] = {}

    def tasks(self, split: str) -> TaskSet:
        """The tasks that the server lists; a digest is the server's own, else that of all it says of the task."""
        if split not in self._known:
            listed = _ask(self.url, f"/{self.name}/tasks", {"split": split})["tasks"]
            self._known[split] = TaskSet(split, [_task(one, number, split) for number, one in enumerate(listed)])
        return self._known[split]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        gymnasium.Env.reset(self, seed=seed)  # before a task is drawn
        wanted = (options or {}).get("task")
        holders = [split for split in self.splits if wanted in self.tasks(split)]
        split = holders[0] if holders else self.splits[0]
        tasks = self.tasks(split)
        self._task = tasks[wanted] if wanted is not None else tasks.require().draw(self.np_random)
        return super().reset(seed=seed, options={"split": split, "index": int(self._task.source)})

    def _info(self, answer: Json) -> Info:
        assert self._task is not None
        about = {"task": self._task.id, "task_type": self._task.type, "split": self._task.split}
        return {**about, **super()._info(answer)}


def remote(url: str) -> Callable[[], RemoteEnv]:
    """A function that opens a session, for ``gagpo.envs.check.check.check``; ServerFailed when nobody answers."""
    names = _ask(url.rstrip("/"), "/list_environments", missing=[])
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


def _ask(url: str, path: str, body: Mapping[str, object] | None = None, missing: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if missing is not None and error.code in (404, 501):
            return missing
        raise ServerFailed(f"{url}{path}: status {error.code}") from None
    except (OSError, ValueError) as error:
        raise ServerFailed(f"{url}{path}: {error}") from None
