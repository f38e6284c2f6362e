"""Our worlds for Tinker's cookbook: a ``MessageEnv`` for one episode, and groups that share task and start."""

from __future__ import annotations

from typing import Any

from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult

from gagpo.interop.games import Conversation, Kwargs, TaskRow, TextGame

Message = dict[str, Any]
"""As the cookbook writes it: a role, and a content that is a string or a list of parts."""


class WorldMessages(MessageEnv):
    """One episode of ``task``: observations are user messages, the action is parsed from the assistant's.

    style: of the prompts, as in ``gagpo.agents.prompts.STYLES``. A response without an action goes to the world as an
    empty one, and ``metrics`` counts it as invalid. The conversation only grows by appending.
    """

    def __init__(self, env_id: str, task: str, seed: int = 0, kwargs: Kwargs | None = None, style: str = "tags"):
        self.example_id = task
        self._game = TextGame(env_id, kwargs)
        self._conversation = Conversation(self._game, style)
        self._task, self._seed = task, seed
        self._messages: list[Message] = []

    async def initial_observation(self) -> list[Message]:
        text = await self._conversation.start(self._task, self._seed)
        instructions = self._conversation.style.system
        system = [{"role": "system", "content": instructions}] if instructions else []
        self._messages = [*system, {"role": "user", "content": text}]
        return list(self._messages)

    async def step(self, message: Message) -> MessageStepResult:
        text = await self._conversation.answer(_text(message))
        game = self._game
        self._messages.append(message)
        metrics = {"invalid": float(not self._conversation.turns[-1].valid)}
        if text is None:
            metrics |= {"success": float(game.success), "truncated": float(game.truncated), "turns": float(game.turns)}
            game.close()
        else:
            self._messages.append({"role": "user", "content": text})
        return MessageStepResult(
            reward=game.last_reward, episode_done=game.done, next_messages=list(self._messages), metrics=metrics
        )


def group(
    env_id: str, row: TaskRow, size: int, kwargs: Kwargs | None = None, style: str = "tags"
) -> list[WorldMessages]:
    """``size`` episodes of a row of ``gagpo.interop.games.rows``, which share task and start."""
    return [WorldMessages(env_id, row["task"], row["seed"], kwargs, style) for _ in range(size)]


def _text(message: Message) -> str:
    """The words of a message; parts that hold thoughts are no words."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")
