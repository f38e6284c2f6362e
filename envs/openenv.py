"""A session of an OpenEnv server as a ``gymnasium.Env``: ``http://HOST:PORT``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import gymnasium

from gagpo.base.errors import GagpoError, MissingPackage, first_line
from gagpo.envs.base import Info, Text

CONNECT_SECONDS = 4.0
ANSWER_SECONDS = 60.0


class ServerFailed(GagpoError):
    """The server cannot be reached, or its answer is not one of an environment."""


class Session(gymnasium.Env[str, str]):
    """Plays over a session of its own, through OpenEnv's client.

    The observation is the field ``text`` if the server sends no other text, else all fields as JSON. ``truncated``,
    ``success`` and ``valid`` are read from the answer's metadata.

    url: the server's address.
    field: the field of an action that carries the text.

    Raises:
        ServerFailed: the server cannot be reached.
    """

    def __init__(self, url: str, field: str = "action", render_mode: str | None = None):
        try:
            from gagpo.envs.openenv_client import CheckedClient
        except ImportError:
            raise MissingPackage(
                "playing on an OpenEnv server requires openenv: pip install 'gagpo[openenv]'"
            ) from None
        self.observation_space, self.action_space = Text(), Text()
        self.url, self.field = url.rstrip("/"), field
        client = CheckedClient(self.url, connect_timeout_s=CONNECT_SECONDS, message_timeout_s=ANSWER_SECONDS)
        self._client: Any = client.sync()
        try:
            self._client.connect()
            self._client.disconnect()  # a server admits few sessions: this one begins with its first episode
        except (ConnectionError, TimeoutError) as error:
            raise ServerFailed(f"{self.url} cannot be reached: {first_line(error)}") from None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        result = self._answer(self._client.reset, **({} if seed is None else {"seed": seed}))
        return _shown(result.observation), self._info(result)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        result = self._answer(self._client.step, {self.field: action})
        info = self._info(result)
        truncated = bool(info.pop("truncated", False))
        done = self._flag("done", result.done or False)
        return _shown(result.observation), self._reward(result.reward), done and not truncated, truncated, info

    def close(self) -> None:
        self._client.close()

    def _answer(self, request: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The result of a request of the client, which assumes that every message has the right shape."""
        try:
            return request(*arguments, **named)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerFailed(f"{self.url} sent a message that cannot be read: {first_line(error)}") from None

    def _info(self, result: Any) -> Info:
        facts = result.metadata if isinstance(result.metadata, dict) else {}
        known = {name: self._flag(name, facts[name]) for name in ("truncated", "success", "valid") if name in facts}
        actions = result.observation.get("admissible_actions") if isinstance(result.observation, dict) else None
        listed = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
        return {**known, "admissible_actions": actions if listed else None}

    def _flag(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise ServerFailed(f"{self.url}: {name} must be true or false, got {value!a:.40}")
        return value

    def _reward(self, reward: object) -> float:
        if reward is None:
            return 0.0
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise ServerFailed(f"{self.url}: the reward must be a finite number, got {reward!a:.40}")
        return float(reward)


def _shown(seen: object) -> str:
    if isinstance(seen, dict) and isinstance(seen.get("text"), str) and set(seen) <= {"text", "admissible_actions"}:
        text = str(seen["text"])
    else:
        text = json.dumps(seen, sort_keys=True)
    return text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates
