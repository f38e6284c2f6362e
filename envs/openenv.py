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
    """Runs episodes in one session of the server, through OpenEnv's client.

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
                "an OpenEnv server requires the package openenv: pip install 'gagpo[openenv]'"
            ) from None
        self.observation_space = Text()
        self.action_space = Text()
        self.url = url.rstrip("/")
        self.field = field
        client = CheckedClient(self.url, connect_timeout_s=CONNECT_SECONDS, message_timeout_s=ANSWER_SECONDS)
        self._client: Any = client.sync()
        try:
            self._client.connect()
            # A server admits few sessions: reset() opens this one, so that an environment built only to be
            # inspected does not occupy one.
            self._client.disconnect()
        except (ConnectionError, TimeoutError) as error:
            raise ServerFailed(f"{self.url} cannot be reached: {first_line(error)}") from None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        result = self._answer(self._client.reset, **({} if seed is None else {"seed": seed}))
        return _as_text(result.observation), self._info(result)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        result = self._answer(self._client.step, {self.field: action})
        info = self._info(result)
        truncated = bool(info.pop("truncated", False))
        terminated = self._flag("done", result.done or False) and not truncated
        return _as_text(result.observation), self._reward(result.reward), terminated, truncated, info

    def close(self) -> None:
        self._client.close()

    def _answer(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a request of the client, which assumes that every message has the right shape."""
        try:
            return request(*arguments, **options)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerFailed(f"{self.url} sent a message that cannot be read: {first_line(error)}") from None

    def _info(self, result: Any) -> Info:
        facts = result.metadata if isinstance(result.metadata, dict) else {}
        flags = {name: self._flag(name, facts[name]) for name in ("truncated", "success", "valid") if name in facts}
        actions = result.observation.get("admissible_actions") if isinstance(result.observation, dict) else None
        are_texts = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
        return {**flags, "admissible_actions": actions if are_texts else None}

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


def _as_text(observation: object) -> str:
    """The field ``text`` if there is no other text to read, else all fields as JSON."""
    text = json.dumps(observation, sort_keys=True)
    if isinstance(observation, dict) and set(observation) <= {"text", "admissible_actions"}:
        content = observation.get("text")
        text = content if isinstance(content, str) else text
    return text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates
