"""What every adapter needs: episodes in this process, and data set rows that name them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

from gagpo.agents.rollout import derive_seed
from gagpo.base.errors import InvalidArgument
from gagpo.envs.arguments import build
from gagpo.envs.base import TextEnv
from gagpo.eval.evaluate import choose_tasks

Kwargs = Mapping[str, Any]
"""Arguments of an environment, as plain values."""


class TaskRow(TypedDict):
    """A row of a data set; its episodes share task and seed. ``index`` is the task's index in its split."""

    task: str
    task_type: str
    seed: int
    split: str
    index: int


@contextmanager
def opened(env_id: str, kwargs: Kwargs | None = None) -> Iterator[TextEnv]:
    """An environment, to read its tasks and texts."""
    env = build(env_id, kwargs, disable_env_checker=True)
    try:
        yield env.unwrapped  # type: ignore[misc]
    finally:
        env.close()


class TextGame:
    """An environment and the state of its current episode.

    reward: sum of the rewards so far.
    last_reward: reward of the last action.
    """

    def __init__(self, env_id: str, kwargs: Kwargs | None = None):
        self.env = build(env_id, kwargs, disable_env_checker=True)
        self._finalizer = weakref.finalize(self, self.env.close)
        self._clear()

    def _clear(self) -> None:
        self.reward = self.last_reward = 0.0
        self.turns = 0
        self.success = self.truncated = False
        self.valid = True
        self.is_over = True
        self.info: dict[str, Any] = {}

    def start(self, task: str, seed: int) -> str:
        """Start ``task``; return the first observation."""
        self._clear()
        observation, self.info = self.env.reset(seed=seed, options={"task": task})
        self.is_over = False
        return str(observation)

    def act(self, action: str) -> str:
        """Do ``action``; return the next observation, or a notice if the episode is over."""
        if self.is_over:
            self.last_reward = 0.0
            return "The episode is over."
        observation, reward, terminated, self.truncated, self.info = self.env.step(action)
        self.last_reward = float(reward)
        self.reward += self.last_reward
        self.turns += 1
        self.success = bool(self.info.get("success"))
        self.valid = bool(self.info.get("valid", True))
        self.is_over = terminated or self.truncated
        return str(observation)

    def close(self) -> None:
        self._finalizer()

    @property
    def instructions(self) -> str:
        return str(getattr(self.env.unwrapped, "instructions", ""))


def rows(
    env_id: str, kwargs: Kwargs | None = None, split: str = "train", count: int | None = None, seed: int = 0
) -> list[TaskRow]:
    """Rows of the tasks of a split, or of ``count`` of them, evenly spaced."""
    with opened(env_id, kwargs) as env:
        tasks = env.tasks(split).require()
    if count is not None and count < 1:
        raise InvalidArgument(f"count must be at least 1, got {count}", key="count")
    index_of_task = {task: i for i, task in enumerate(tasks.ids)}
    selected = choose_tasks(tasks, count)
    seeds = {task.id: derive_seed(seed, split, task.id) % 2**31 for task in selected}
    return [
        TaskRow(task=task.id, task_type=task.type, seed=seeds[task.id], split=split, index=index_of_task[task.id])
        for task in selected
    ]
