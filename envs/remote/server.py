"""What an OpenEnv server says of itself before an episode: its action's field, its instructions, its tasks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gagpo.base.errors import InvalidArgument, MissingPackage, first_line
from gagpo.envs.lookup import is_address
from gagpo.envs.remote.exchange import ExchangeFailed, Reply, exchange, is_loopback, open_http
from gagpo.envs.remote.protocol import ACTION, Json, ServerFailed, as_list, as_object
from gagpo.envs.tasks import Task, TaskSet

TIMEOUT = 60.0  # seconds for one answer over HTTP
MOST = 64 << 20  # bytes of such an answer: long lists of tasks are honest
PAGE = 1000  # tasks that are asked for at once
MOST_TASKS = 10_000_000
WORDS = 10_000  # characters of instructions
_TEST = 1 << 32  # seeds of the test split begin here, beyond any of the training split


class Server:
    """A server, asked over HTTP as needed. Raises :class:`ServerFailed`, in one line, for whatever is no answer.

    Tasks are those that it lists (OpenEnv's ``TaskProvider``). Of one that lists none each seed is a task: ``train`` of
    them in the split of that name, ``test`` others in the split ``test``. The digest of such a task holds what the
    server says of itself, so that splits of two servers, or of two versions of one, do not agree by accident.

    url: where it answers, which may change while it is used. proxies: heed those of the environment, unless it is on
    this machine.
    """

    def __init__(self, url: str, train: int = 1000, test: int = 100, *, proxies: bool = True):
        if not is_address(url):
            raise InvalidArgument(f"an OpenEnv server is named by http://HOST:PORT, got {url!r:.80}")
        if not (0 < train < _TEST and 0 < test < _TEST):
            raise InvalidArgument(f"train and test, the numbers of seeds, are at least 1, got {train} and {test}")
        self.url = url.rstrip("/")
        self._proxies = proxies
        self._seeds = {"train": range(train), "test": range(_TEST, _TEST + test)}
        self._known: dict[str, TaskSet] = {}

    @property
    def proxies(self) -> bool:
        """Whether it is asked through the proxies of the environment."""
        return self._proxies and not is_loopback(self.url)

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http") + "/ws"

    @cached_property
    def schema(self) -> Json:
        """Its action and observation, as JSON schema."""
        return as_object(self._ask("/schema"))

    @cached_property
    def field(self) -> str:
        """The one field of an action that its schema requires."""
        required = as_object(self.schema.get("action")).get("required")
        return str(required[0]) if isinstance(required, list) and required else ACTION

    @cached_property
    def instructions(self) -> str:
        """What it says of the world, for the prompt."""
        return str(self._about.get("description") or "")[:WORDS]

    @cached_property
    def name(self) -> str:
        """The name under which it lists tasks; empty where it lists none."""
        names = as_list(self._ask("/list_environments", missing=[]))
        try:
            listed = bool(names) and bool(self._ask(f"/{names[0]}/splits"))
        except ServerFailed:
            listed = False
        return str(names[0]) if listed else ""

    @cached_property
    def splits(self) -> tuple[str, ...]:
        if not self.name:
            return tuple(self._seeds)
        return tuple(str(as_object(split).get("name")) for split in as_list(self._ask(f"/{self.name}/splits")))

    def tasks(self, split: str) -> TaskSet:
        """The tasks of a split; a digest is the server's own, else that of all it says of the task."""
        if split not in self._known:
            self._known[split] = TaskSet(split, self._listed(split) if self.name else self._seeded(split))
        return self._known[split]

    def task(self, name: str) -> Task:
        """The task of that id, of whichever split; UnknownTask names the nearest."""
        for split in self.splits:
            if name in self.tasks(split):
                return self.tasks(split)[name]
        return self.tasks(self.splits[0])[name]

    def beginning(self, task: Task, seed: int | None) -> Json:
        """What a ``reset`` says to start ``task``. Where a seed is a task, that is the seed."""
        if not task.source.isdecimal():
            raise ServerFailed(f"{self.url}: task {task.id!r:.80} has the index {task.source!r:.40}, no whole number")
        index = int(task.source[:18])
        if not self.name:
            return {"seed": index}
        return {"split": task.split, "index": index, **({} if seed is None else {"seed": seed})}

    @cached_property
    def _about(self) -> Json:
        return as_object(self._ask("/metadata", missing={}))

    def _listed(self, split: str) -> list[Task]:
        path = f"/{self.name}/"
        count = as_object(self._ask(path + "num_tasks", {"split": split}, missing={})).get("num_tasks")
        found = as_list(as_object(self._ask(path + "tasks", {"split": split})).get("tasks"))
        if type(count) is int and count > MOST_TASKS:
            raise ServerFailed(f"{self.url}: split {split!r:.80} is said to have {count:.3g} tasks")
        # One answer may hold only the first of many.
        while type(count) is int and len(found) < count:
            asked = {"split": split, "start": len(found), "stop": min(count, len(found) + PAGE)}
            page = as_list(as_object(self._ask(path + "task_range", asked)).get("tasks"))
            if not page:
                raise ServerFailed(f"{self.url}: split {split!r:.80} has {count} tasks and lists {len(found)} of them")
            found += page
        return [_task(one, number, split) for number, one in enumerate(found)]

    def _seeded(self, split: str) -> list[Task]:
        said = json.dumps([self.schema, self._about.get("name"), self._about.get("version")], sort_keys=True)
        world = hashlib.sha256(said.encode()).hexdigest()[:16]
        seeds = self._seeds.get(split, range(0))
        return [Task(f"{split}-{seed % _TEST:07d}", split, "", f"{world}-{seed}", str(seed)) for seed in seeds]

    def _ask(self, path: str, body: Mapping[str, object] | None = None, missing: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            reply = asyncio.run(_exchanged(self.url + path, data, self.proxies))
            if missing is not None and reply.status in (404, 501):
                return missing
            if reply.status == 200:
                return json.loads(reply.body)
        except (ExchangeFailed, ValueError, RecursionError) as error:
            raise ServerFailed(f"{self.url}{path}: {first_line(error)}") from None
        raise ServerFailed(f"{self.url}{path}: status {reply.status}: {reply.said}")


def require_websockets() -> None:
    """MissingPackage unless sessions can be opened."""
    try:
        import websockets  # noqa: F401
    except ImportError:
        raise MissingPackage("a world on a server needs the package websockets; install the extra openenv") from None


def _task(one: object, number: int, split: str) -> Task:
    about = one if isinstance(one, dict) else {"id": one}
    digest = str(about.get("digest") or hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16])
    name = str(about.get("id", f"{split}-{number}"))
    return Task(name, split, str(about.get("type", "")), digest, str(about.get("index", number)))


async def _exchanged(url: str, data: bytes | None, proxies: bool) -> Reply:
    async with open_http(proxies=proxies) as http:
        return await exchange(http, "GET" if data is None else "POST", url, data, deadline=TIMEOUT, most=MOST)
