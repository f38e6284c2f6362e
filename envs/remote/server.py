"""The metadata of an OpenEnv server, over HTTP: action field, instructions, tasks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gagpo.base.errors import InvalidArgument, MissingPackage, first_line
from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import is_address
from gagpo.envs.remote.exchange import ExchangeFailed, Reply, exchange, is_loopback, open_http
from gagpo.envs.remote.protocol import ACTION, Json, ServerFailed, as_object
from gagpo.envs.tasks import Task, TaskSet

TIMEOUT = 60.0  # seconds for one HTTP answer
MOST_BYTES = 64 << 20  # of one HTTP answer
ALL_SECONDS = 300.0  # for all HTTP answers of a server
ALL_BYTES = 256 << 20  # of all HTTP answers of a server
PAGE = 1000  # tasks requested at once
MOST_TASKS, MOST_SPLITS = 1_000_000, 100
WORDS = 10_000  # characters of instructions
_TEST = 1 << 32  # the first seed of the test split, beyond any of the training split


class Server:
    """An OpenEnv server.

    Its tasks are those it lists (OpenEnv's ``TaskProvider``). If it lists none, each seed is a task. The digest of such
    a task covers the server's name, version and schema, so that the splits of two versions differ.

    train: number of seeds in the split ``train``, if the server lists no tasks.
    test: number of other seeds in the split ``test``.

    Raises:
        InvalidArgument: an argument is out of range.
        ServerFailed: from any method, if an answer is missing or invalid.
    """

    def __init__(self, url: str, train: int = 1000, test: int = 100):
        if not is_address(url):
            raise InvalidArgument(f"an OpenEnv server's address is http://HOST:PORT, got {url!r:.80}")
        if not (0 < train <= MOST_TASKS and 0 < test <= MOST_TASKS):
            raise InvalidArgument(f"train and test must be from 1 to {MOST_TASKS}, got {train} and {test}")
        self.url = url.rstrip("/")
        self.proxies = not is_loopback(url)
        self._seeds = {"train": range(train), "test": range(_TEST, _TEST + test)}
        self._known: dict[str, TaskSet] = {}
        self._seconds, self._bytes = 0.0, 0  # that HTTP answers have taken so far

    @cached_property
    def schema(self) -> Json:
        """The JSON schema of its actions and observations."""
        return as_object(self._ask("/schema"))

    @cached_property
    def field(self) -> str:
        """The field of an action that its schema requires."""
        required = as_object(self.schema.get("action")).get("required")
        return str(required[0]) if isinstance(required, list) and required else ACTION

    @cached_property
    def instructions(self) -> str:
        """Its description, for the prompt."""
        return str(self._about.get("description") or "")[:WORDS]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits it lists; ``train`` and ``test`` if it lists none."""
        return tuple(self._listed_splits) or tuple(self._seeds)

    def tasks(self, split: str) -> TaskSet:
        """The tasks of a split; without a digest from the server, a task's digest is the hash of its record."""
        if split not in self._known:
            found = self._listed(split) if self._listed_splits else self._seeded(split)
            try:
                self._known[split] = TaskSet(split, found)
            except InvalidArgument as error:
                raise ServerFailed(f"{self.url}: {error}") from None
        return self._known[split]

    def task(self, name: str) -> Task:
        """The task with that id in any split; UnknownTask suggests the nearest."""
        for split in self.splits:
            if name in self.tasks(split):
                return self.tasks(split)[name]
        return self.tasks(self.splits[0])[name]

    def beginning(self, task: Task, seed: int | None) -> Json:
        """The data of a ``reset`` that starts ``task``. If seeds are tasks, ``seed`` is ignored."""
        if not task.source.isdecimal():
            raise ServerFailed(f"{self.url}: the index of task {task.id!r:.80} is {task.source!r:.40}, not a number")
        index = int(task.source[:18])
        if not self._listed_splits:
            return {"seed": index}
        return {"split": task.split, "index": index, **({} if seed is None else {"seed": seed})}

    @cached_property
    def _name(self) -> str:
        """The name under which it lists tasks; empty if it lists none."""
        names = self._ask("/list_environments", missing=[])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ServerFailed(f"{self.url}/list_environments: expected a list of names, got {names!a:.80}")
        return names[0] if names else ""

    @cached_property
    def _listed_splits(self) -> list[str]:
        """The names of the splits it lists; empty if it lists none."""
        if not self._name:
            return []
        path = f"/{self._name}/splits"
        splits = self._ask(path, missing=[])
        if not isinstance(splits, list) or len(splits) > MOST_SPLITS:
            raise ServerFailed(f"{self.url}{path}: expected a list of at most {MOST_SPLITS} splits, got {splits!a:.80}")
        names = [as_object(split).get("name") for split in splits]
        if not all(isinstance(name, str) and name for name in names):
            raise ServerFailed(f"{self.url}{path}: expected splits with names, got {splits!a:.80}")
        return [str(name) for name in names]

    @cached_property
    def _about(self) -> Json:
        return as_object(self._ask("/metadata", missing={}))

    def _listed(self, split: str) -> list[Task]:
        """The tasks of a split that the server lists, read page by page."""
        path, where = f"/{self._name}/", f"{self.url}: split {split!r:.80}"
        count = as_object(self._ask(path + "num_tasks", {"split": split}, missing={})).get("num_tasks")
        count = count if type(count) is int else 0
        if count > MOST_TASKS:
            raise ServerFailed(f"{where} has {count:.3g} tasks; the limit is {MOST_TASKS}")
        found: list[object] = []
        while len(found) < max(count, 1):
            if not found:  # the first answer may hold all tasks, or only some
                reply = self._exchange(path + "tasks", {"split": split})
            else:
                asked = {"split": split, "start": len(found), "stop": min(count, len(found) + PAGE)}
                reply = self._exchange(path + "task_range", asked)
            page = as_object(self._parsed(path, reply)).get("tasks")
            if not isinstance(page, list) or (not page and count):
                raise ServerFailed(f"{where} has {count} tasks but lists {len(found)} of them")
            found += page
            if len(found) > MOST_TASKS:
                raise ServerFailed(f"{where} lists more than {MOST_TASKS} tasks")
            if not count:
                break
        return [_task(one, number, split) for number, one in enumerate(found)]

    def _seeded(self, split: str) -> list[Task]:
        said = json.dumps([self.schema, self._about.get("name"), self._about.get("version")], sort_keys=True)
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        seeds = self._seeds.get(split, range(0))
        return [Task(f"{split}-{seed % _TEST:07d}", split, "", f"{digest}-{seed}", str(seed)) for seed in seeds]

    def _ask(self, path: str, body: Mapping[str, object] | None = None, missing: object = None) -> Any:
        """The JSON of an answer; ``missing`` if the server does not know the path."""
        reply = self._exchange(path, body)
        return missing if missing is not None and reply.status in (404, 501) else self._parsed(path, reply)

    def _exchange(self, path: str, body: Mapping[str, object] | None) -> Reply:
        data = None if body is None else json.dumps(body).encode()
        begun, deadline = time.monotonic(), min(TIMEOUT, ALL_SECONDS - self._seconds)
        try:
            reply = asyncio.run(_exchanged(self.url + path, data, self.proxies, deadline))
        except (ExchangeFailed, ValueError) as error:
            raise ServerFailed(f"{self.url}{path}: {first_line(error)}") from None
        self._seconds += time.monotonic() - begun
        self._bytes += len(reply.body)
        if self._seconds > ALL_SECONDS:
            raise ServerFailed(f"{self.url}: listing its tasks takes more than {ALL_SECONDS:g} s")
        if self._bytes > ALL_BYTES:
            raise ServerFailed(f"{self.url}: the lists of its tasks take more than {ALL_BYTES} bytes")
        return reply

    def _parsed(self, path: str, reply: Reply) -> Any:
        if reply.status != 200:
            raise ServerFailed(f"{self.url}{path}: status {reply.status}: {reply.said}")
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise ServerFailed(f"{self.url}{path}: {first_line(error)}") from None


def server_at(url: str, kwargs: Kwargs) -> Server:
    """The server of an environment whose id is an address."""
    try:
        return Server(url, **kwargs)
    except TypeError as error:
        raise InvalidArgument(f"environment {url}: {error}") from None


def require_websockets() -> None:
    """Raise MissingPackage unless sessions can be opened."""
    try:
        import websockets  # noqa: F401
    except ImportError:
        raise MissingPackage("playing on an OpenEnv server requires websockets: pip install 'gagpo[openenv]'") from None


def _task(one: object, number: int, split: str) -> Task:
    about = one if isinstance(one, dict) else {"id": one}
    digest = str(about.get("digest") or hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16])
    name = str(about.get("id", f"{split}-{number}"))
    return Task(name, split, str(about.get("type", "")), digest, str(about.get("index", number)))


async def _exchanged(url: str, data: bytes | None, proxies: bool, deadline: float) -> Reply:
    async with open_http(proxies=proxies) as http:
        return await exchange(http, "GET" if data is None else "POST", url, data, deadline=deadline, most=MOST_BYTES)
