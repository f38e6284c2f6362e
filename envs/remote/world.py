"""A session of an OpenEnv server as a ``gymnasium.Env``: for the checker, for a look at its tasks, for one episode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from gagpo.base.errors import first_line
from gagpo.envs.base import Info, Kwargs, Text
from gagpo.envs.lookup import is_image
from gagpo.envs.remote.containers import ContainerLease
from gagpo.envs.remote.protocol import (
    MOST_BYTES,
    Json,
    Observed,
    ServerFailed,
    WorldFailed,
    message,
    observed,
)
from gagpo.envs.remote.server import TIMEOUT, Server, require_websockets
from gagpo.envs.tasks import Task, TaskSet


class RemoteEnv(gymnasium.Env[str, str]):
    """One session, opened with its first episode, whose episodes start by seed.

    An observation is what an agent would be shown; an action fills the one field that the server's schema requires.
    """

    metadata: Info = {"render_modes": []}  # noqa: RUF012 (declared so by gymnasium.Env)

    def __init__(self, url: str | Server, train: int = 1000, test: int = 100):
        require_websockets()
        self.observation_space, self.action_space = Text(), Text()
        self.server = url if isinstance(url, Server) else Server(url, train, test)
        self._task: Task | None = None
        self._turn, self._field = -1, self.server.field
        self._socket: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        given = {name: value for name, value in {"seed": seed, **(options or {})}.items() if value is not None}
        return self._begin(given)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._socket is None:
            raise ResetNeeded("reset before the first step")
        over = self._turn < 0
        try:
            found = self._send("step", {self._field: action}, self._turn + 1)
        except WorldFailed as error:
            raise ResetNeeded(str(error)) if over else error from None
        self._turn = -1 if found.terminated or found.truncated else self._turn + 1
        return found.text, found.reward, found.terminated, found.truncated, found.info

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _begin(self, data: Json) -> tuple[str, Info]:
        self._turn = 0
        found = self._send("reset", data, 0)
        return found.text, found.info

    def _send(self, kind: str, data: Json, turn: int) -> Observed:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        address, proxy = self.server.socket_url, True if self.server.proxies else None
        end = time.monotonic() + TIMEOUT
        try:
            if self._socket is None:
                self._socket = connect(
                    address, max_size=MOST_BYTES, open_timeout=TIMEOUT, compression=None, legacy=True, proxy=proxy
                )
            self._socket.send(message(kind, data))
            raw = self._socket.recv(timeout=max(0.0, end - time.monotonic()))
        except (OSError, WebSocketException) as error:
            raise ServerFailed(f"{address}: {first_line(error)}") from None
        return observed(address, raw, self._task, turn)


class RemoteWorld(RemoteEnv):
    """A session of a server whose tasks are known: those that it lists, else seeds. See :class:`Server`."""

    def __init__(self, url: str | Server, train: int = 1000, test: int = 100):
        super().__init__(url, train, test)
        self.splits = self.server.splits
        self.instructions = self.server.instructions

    def tasks(self, split: str) -> TaskSet:
        return self.server.tasks(split)

    @staticmethod
    def material(kwargs: Kwargs) -> dict[str, Any]:
        """Nothing: which problems are played, and how, is for the server to say, in the hashes of its tasks."""
        return {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        gymnasium.Env.reset(self, seed=seed)  # before a task is drawn
        wanted = (options or {}).get("task")
        first = self.tasks(self.splits[0])
        self._task = first.require().draw(self.np_random) if wanted is None else self.server.task(wanted)
        return self._begin(self.server.beginning(self._task, seed))


class ContainerWorld(RemoteWorld):
    """A session of a server in a container, which this world holds until it is closed.

    container: the fields of :class:`gagpo.envs.remote.container_settings.ContainerSettings`.
    """

    def __init__(self, image: str, train: int = 1000, test: int = 100, **container: Any):
        self._lease = ContainerLease(image, container)
        try:
            super().__init__(self._lease.servers(train, test)[0])
        except BaseException:
            self._lease.close()
            raise

    @staticmethod
    def material(kwargs: Kwargs) -> dict[str, Any]:
        """What the server is told by its environment; the rest is in the hashes of its tasks."""
        variables = kwargs.get("variables")
        return {"variables": variables} if variables else {}

    def close(self) -> None:
        super().close()
        self._lease.close()


def remote(url: str) -> Callable[[], RemoteEnv]:
    """A function that opens a session, for ``gagpo.envs.check.check.check``; ServerFailed when nobody answers."""
    server = Server(url)
    return (lambda: RemoteWorld(server)) if server.name else (lambda: RemoteEnv(server))


@contextmanager
def checkable(env_id: str, kwargs: Kwargs) -> Iterator[tuple[Callable[[], RemoteEnv], Kwargs]]:
    """As :func:`remote` for an address or an image, with the arguments that are left; a container lives as long.

    Sessions of one container are opened one after another, as those of a server are.
    """
    if not is_image(env_id):
        yield remote(env_id), kwargs
        return
    container = {name: value for name, value in kwargs.items() if name not in ("train", "test")}
    with closing(ContainerLease(env_id, container)) as lease:
        server = lease.servers(int(kwargs.get("train", 1000)), int(kwargs.get("test", 100)))[0]
        yield (lambda: RemoteWorld(server)) if server.name else (lambda: RemoteEnv(server)), {}
