"""One episode after another in this process, and the rows of a data set that name them: what every adapter needs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import gymnasium

from gagpo.agents.rollout import derive_seed
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.lookup import find_spec


class TextGame:
    """An environment with the facts of its present episode.

    reward: sum so far; last_reward: of the last action. success, truncated, done, valid: as the environment says.
    """

    def __init__(self, env_id: str, kwargs: Mapping[str, Any] | None = None):
        self.env = gymnasium.make(find_spec(env_id), disable_env_checker=True, **dict(kwargs or {}))
        self._finalizer = weakref.finalize(self, self.env.close)
        self._clear()

    def _clear(self) -> None:
        self.reward = self.last_reward = 0.0
        self.turns = 0
        self.success = self.truncated = False
        self.valid, self.done = True, True
        self.info: dict[str, Any] = {}

    def start(self, task: str, seed: int) -> str:
        """Begin ``task``; the first observation."""
        self._clear()
        observation, self.info = self.env.reset(seed=seed, options={"task": task})
        self.done = False
        return str(observation)

    def act(self, action: str) -> str:
        """The answer to an action; after the end nothing happens any more, and the answer says so."""
        if self.done:
            self.last_reward = 0.0
            return "The episode is over."
        observation, reward, terminated, self.truncated, self.info = self.env.step(action)
        self.last_reward = float(reward)
        self.reward += self.last_reward
        self.turns += 1
        self.success, self.valid = bool(self.info.get("success")), bool(self.info.get("valid", True))
        self.done = terminated or self.truncated
        return str(observation)

    def close(self) -> None:
        self._finalizer()

    @property
    def instructions(self) -> str:
        return str(getattr(self.env.unwrapped, "instructions", ""))


def rows(
    env_id: str, kwargs: Mapping[str, Any] | None = None, split: str = "train", count: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """``{"task", "task_type", "seed", "split", "index"}`` of the tasks of a split (``count`` of them, spread evenly).

    A group of episodes made from one row shares task and start, which group-based credit relies on.
    """
    game = TextGame(env_id, kwargs)
    try:
        tasks = game.env.unwrapped.tasks(split).require()  # type: ignore[attr-defined]
    finally:
        game.close()
    ids = tasks.ids
    if count is not None and count < 1:
        raise InvalidArgument(f"count must be at least 1, got {count}")
    places = range(len(ids)) if count is None or count >= len(ids) else [i * len(ids) // count for i in range(count)]
    return [
        {
            "task": ids[i],
            "task_type": tasks[ids[i]].type,
            "seed": derive_seed(seed, split, ids[i]) % 2**31,
            "split": split,
            "index": i,
        }
        for i in places
    ]
