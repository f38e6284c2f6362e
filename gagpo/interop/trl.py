"""Environments in TRL's ``GRPOTrainer``: an ``environment_factory`` and a data set.

    trainer = GRPOTrainer(model, args=args, train_dataset=dataset(ID), environment_factory=environment_factory(ID))

The trainer gets one tool, ``act``, which takes the action as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gagpo.interop.games import Kwargs, TextGame, opened, rows

if TYPE_CHECKING:
    from datasets import Dataset


class EnvironmentTools:
    """An environment as TRL drives it: public methods except ``reset`` and ``get_reward`` are tools."""

    _env_id: str
    _kwargs: Kwargs

    def __init__(self) -> None:
        self._game = TextGame(self._env_id, self._kwargs)

    def reset(self, task: str, seed: int = 0, **row: object) -> str:
        """Start ``task``; return the first observation, which TRL appends to the prompt."""
        return self._game.start(task, int(seed))

    def act(self, action: str) -> str:
        """
        Act in the environment.

        Args:
            action: One command, in the environment's own words.

        Returns:
            What is seen next.
        """
        return self._game.act(action)

    def get_reward(self) -> float:
        """Sum of the episode's rewards."""
        return self._game.reward


def environment_factory(env_id: str, kwargs: Kwargs | None = None) -> type[EnvironmentTools]:
    """A class that TRL instantiates; the reward column is named after it."""
    members = {"_env_id": env_id, "_kwargs": dict(kwargs or {}), "__doc__": f"{env_id} for TRL."}
    name = env_id.rpartition("/")[2].rpartition(":")[2].partition("-")[0]
    return type(name, (EnvironmentTools,), members)


def dataset(
    env_id: str, kwargs: Kwargs | None = None, *, split: str = "train", count: int | None = None, seed: int = 0
) -> Dataset:
    """A data set whose rows hold a prompt, a task and a seed, so that a group starts alike."""
    from datasets import Dataset

    with opened(env_id, kwargs) as env:
        instructions = env.instructions
    ask = "Act by calling tools, one at a time, until the task is done."
    prompt = [{"role": "user", "content": f"{instructions}\n{ask}\n\n".lstrip()}]
    return Dataset.from_list([{"prompt": prompt, **row} for row in rows(env_id, kwargs, split, count, seed)])
