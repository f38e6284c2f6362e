"""Our worlds in TRL's ``GRPOTrainer``: an ``environment_factory`` and a data set.

    trainer = GRPOTrainer(model, args=args, train_dataset=dataset(ID), environment_factory=environment_factory(ID))

The trainer's tools are the world's verbs, or with ``verbs=False`` one tool that takes the action as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gagpo.interop.games import TextGame, rows
from gagpo.interop.verbs import ACT, as_method, verbs_of


class _Environment:
    """What TRL drives: ``reset`` starts the row's task, public methods are tools, ``get_reward`` ends a rollout."""

    _env_id: str
    _kwargs: Mapping[str, Any]

    def __init__(self) -> None:
        self._game = TextGame(self._env_id, self._kwargs)

    def reset(self, task: str, seed: int = 0, **row: Any) -> str:
        """Start ``task``; the first observation, which TRL appends to the prompt."""
        return self._game.start(task, int(seed))

    def get_reward(self) -> float:
        """Sum of the episode's rewards."""
        return self._game.reward


def _act(environment: _Environment, action: str) -> str:
    return environment._game.act(action)


def environment_factory(
    env_id: str, kwargs: Mapping[str, Any] | None = None, *, verbs: bool = True
) -> Callable[[], Any]:
    """A class whose instances TRL makes and resets. The reward column is named after it.

    Raises ``gagpo.GagpoError`` when ``verbs`` are asked of an environment that has none.
    """
    tools = verbs_of(env_id) if verbs else [ACT]
    members: dict[str, Any] = {verb.name: as_method(verb, _act) for verb in tools}
    members |= {"_env_id": env_id, "_kwargs": dict(kwargs or {}), "__doc__": f"{env_id} for TRL."}
    name = env_id.rpartition("/")[2].rpartition(":")[2].partition("-")[0]
    return type(name, (_Environment,), members)


def dataset(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    count: int | None = None,
    seed: int = 0,
    verbs: bool = True,
) -> Any:
    """A ``datasets.Dataset`` with a prompt, a task and a seed in each row, so that a group shares its start.

    With verbs the prompt says only what TRL cannot: that tools are to be called until the task is done.
    """
    from datasets import Dataset

    game = TextGame(env_id, kwargs)
    try:
        told = game.instructions if not verbs else ""
    finally:
        game.close()
    ask = "Act by calling tools, one at a time, until the task is done."
    prompt = [{"role": "user", "content": f"{told}\n{ask}\n\n".lstrip()}]
    return Dataset.from_list([{"prompt": prompt, **row} for row in rows(env_id, kwargs, split, count, seed)])
