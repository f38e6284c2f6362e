"""A session of an OpenEnv server as a ``gymnasium.Env``."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info, Kwargs, Text
from gagpo.envs.pool.slots import Event
from gagpo.envs.remote.pool import RemotePool
from gagpo.envs.remote.protocol import ServerFailed
from gagpo.envs.remote.server import TIMEOUT, Server, require_websockets
from gagpo.envs.tasks import TaskSet


class RemoteEnv(gymnasium.Env[str, str]):
    """One session, opened with the first episode. For the arguments see :class:`Server`."""

    metadata: Info = {"render_modes": []}  # noqa: RUF012 (declared so by gymnasium.Env)

    def __init__(self, url: str, train: int = 1000, test: int = 100):
        require_websockets()
        self.observation_space, self.action_space = Text(), Text()
        self.server = Server(url, train, test)
        self.splits = self.server.splits
        self.instructions = self.server.instructions
        self._pool: RemotePool | None = None

    def tasks(self, split: str) -> TaskSet:
        return self.server.tasks(split)

    @staticmethod
    def material(kwargs: Kwargs) -> dict[str, Any]:
        """Nothing: the digests of the server's tasks identify them."""
        return {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)  # before a task is drawn
        task = (options or {}).get("task")
        if task is None:
            task = self.tasks(self.splits[0]).draw(self.np_random).id
        if self._pool is None:
            self._pool = RemotePool(self.server, reset_deadline=TIMEOUT, max_restarts=0)
        self._pool.reset(0, self.server.task(task).id, seed)
        event = self._answer(self._pool)
        return event.observation, event.info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._pool is None:
            raise ResetNeeded("reset before the first step")
        try:
            self._pool.step(0, action)
        except InvalidArgument as error:
            raise ResetNeeded(str(error)) from None
        event = self._answer(self._pool)
        return event.observation, event.reward, event.terminated, event.truncated, event.info

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _answer(self, pool: RemotePool) -> Event:
        try:
            (event,) = pool.wait()
        except ServerFailed:
            self.close()
            raise
        if event.kind == "failed":
            raise ServerFailed(event.error)
        return event
