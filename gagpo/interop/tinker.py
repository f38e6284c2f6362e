"""Our worlds for Tinker's cookbook: a ``MessageEnv`` for one episode, and groups that share task and start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult

from gagpo.agents.parsing import parse
from gagpo.agents.prompts import STYLES, message
from gagpo.interop.games import TextGame


class WorldMessages(MessageEnv):
    """One episode of ``task``: observations are user messages, the action is parsed from the assistant's.

    style: of the prompts, as in ``gagpo.agents.prompts.STYLES``. A response without an action goes to the world as an
    empty one, and ``metrics`` counts it as invalid. The conversation only grows by appending.
    """

    def __init__(
        self, env_id: str, task: str, seed: int = 0, kwargs: Mapping[str, Any] | None = None, style: str = "tags"
    ):
        self.example_id = task
        self._game = TextGame(env_id, kwargs)
        self._task, self._seed = task, seed
        self._style = STYLES[style]
        self._messages: list[Any] = []

    async def initial_observation(self) -> list[Any]:
        observation = await asyncio.to_thread(self._game.start, self._task, self._seed)
        system = [{"role": "system", "content": self._style.system}] if self._style.system else []
        text = message(self._style, self._game.instructions, observation, "", first=True)
        self._messages = [*system, {"role": "user", "content": text}]
        return list(self._messages)

    async def step(self, message_: Any) -> MessageStepResult:
        action = parse(_text(message_), self._style.parser)
        observation = await asyncio.to_thread(self._game.act, action or "")
        game = self._game
        self._messages.append(message_)
        if not game.done:
            text = message(self._style, "", observation, "", first=False)
            self._messages.append({"role": "user", "content": text})
        valid = action is not None and game.valid
        metrics = {"invalid": float(not valid)}
        if game.done:
            metrics |= {"success": float(game.success), "truncated": float(game.truncated), "turns": float(game.turns)}
            game.close()
        return MessageStepResult(
            reward=game.last_reward, episode_done=game.done, next_messages=list(self._messages), metrics=metrics
        )


def group(
    env_id: str, row: Mapping[str, Any], size: int, kwargs: Mapping[str, Any] | None = None, style: str = "tags"
) -> list[WorldMessages]:
    """``size`` episodes of a row of ``gagpo.interop.games.rows``, which share task and start."""
    return [WorldMessages(env_id, row["task"], row["seed"], kwargs, style) for _ in range(size)]


def _text(message_: Any) -> str:
    """The words of a message, whose content is a string or a list of parts; thoughts are no words."""
    content = message_["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")
