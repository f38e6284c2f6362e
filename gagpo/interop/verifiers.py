"""Our environments as a taskset of verifiers, played in the process of the evaluation.

verifiers finds a taskset by a module name: a file ``environments.py`` on the path that imports ``TasksetEnv`` and
``EnvironmentTaskset`` and lists both in ``__all__`` is the taskset ``environments``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.harnesses.null.harness import NullHarnessConfig
from verifiers.v1.runtimes.subprocess import SubprocessConfig

from gagpo.agents.prompts import text_prompt
from gagpo.interop.games import Conversation, TextGame, opened, rows

__all__ = ["TasksetEnv", "EnvironmentTaskset"]


class EnvironmentConfig(vf.TasksetConfig):
    """The environment and its tasks; ``prompt_name`` is that of a shipped prompt or a YAML file."""

    env_id: str = "gagpo/Math-v0"  # verifiers needs a default before it reads the command line
    kwargs: dict[str, Any] = Field(default_factory=dict)
    split: str = "train"
    count: int | None = None
    seed: int = 0
    prompt_name: str = "tags"


class EnvironmentData(vf.TaskData):
    """One task; ``start`` is the seed of all its episodes."""

    env_id: str
    kwargs: dict[str, Any]
    task: str
    start: int
    prompt_name: str


class EnvironmentTask(vf.Task[EnvironmentData]):
    """The task of a row; the environment gives the reward."""


class EnvironmentTaskset(vf.Taskset[EnvironmentTask, EnvironmentConfig]):
    """The tasks of a split, in its order."""

    def load(self) -> Iterator[EnvironmentTask]:
        config = self.config
        prompt = text_prompt(config.prompt_name)
        with opened(config.env_id, config.kwargs) as env:
            opening = prompt.opening(str(getattr(env, "instructions", "")))
        for row in rows(config.env_id, config.kwargs, config.split, config.count, config.seed):
            data = EnvironmentData(
                id=row["task"],
                name=row["task"],
                description=row["task_type"],
                system_prompt=next((one["content"] for one in opening), None),
                env_id=config.env_id,
                kwargs=config.kwargs,
                task=row["task"],
                start=row["seed"],
                prompt_name=config.prompt_name,
            )
            yield EnvironmentTask(data, config.task)


class TasksetEnvConfig(vf.EnvConfig):
    """The agent: a plain chat in a subprocess, because the environment runs in this process."""

    player: vf.AgentConfig = vf.AgentConfig(harness=NullHarnessConfig(id="null"), runtime=SubprocessConfig())


class TasksetEnv(vf.Env[TasksetEnvConfig]):
    """Plays the environment's side. Metrics are success, turns and invalid turns."""

    async def run(self, task: Any, agents: Any) -> None:
        data = task.data
        game = await asyncio.to_thread(TextGame, data.env_id, data.kwargs)
        conversation = Conversation(game, data.prompt_name)
        try:
            text: str | None = await conversation.start(data.task, data.start)
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(text)
                while not segment.terminated and (text := await conversation.answer(segment.last_reply)) is not None:
                    segment = await interaction.turn(text)
        finally:
            game.close()
        invalid = sum(not turn.valid for turn in conversation.turns)
        trace = interaction.trace
        trace.record_reward("reward", game.reward)
        trace.record_metrics({"success": game.success, "turns": game.turns, "invalid": invalid})
