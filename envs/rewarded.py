"""Reward functions next to the reward of any environment: the argument ``reward`` of every environment.

``reward=module:function`` replaces the environment's rewards by what the function returns at the end of an episode. A
list adds the values of several functions, and a mapping weighs them; ``environment`` in it stands for the
environment's own rewards, which are otherwise only in ``info["environment_reward"]``.

Functions are called by the names of their parameters, see :mod:`gagpo.envs.rewards.calls`. Their row holds ``id``,
``split``, ``type``, ``environment_reward``, ``success`` and what the environment adds with ``reward_columns``, such as
the right answer. Prompts are the first observation, and answers the actions, both as messages.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info, Kwargs
from gagpo.envs.lookup import creator_of
from gagpo.envs.rewards.calls import author, call_reward, needs_token_ids
from gagpo.envs.rewards.functions import FUNCTIONS, report

REWARD = "reward"
ENVIRONMENT = "environment"
"""The name of the environment's own reward among the functions."""


class RewardedEnv(gymnasium.Wrapper[str, str, str, str]):
    """An environment whose rewards are those of functions.

    weights: by ``module:function``, or ``environment``.

    Raises: InvalidArgument for a function that cannot be imported or used here.
    """

    def __init__(self, env: gymnasium.Env[str, str], weights: Mapping[str, float]):
        super().__init__(env)
        self._own_weight = weights.get(ENVIRONMENT, 0.0)
        self._functions: list[tuple[Callable[..., Any], float]] = []
        for name, weight in weights.items():
            if name == ENVIRONMENT:
                continue
            function = FUNCTIONS.find(name)
            if needs_token_ids(function):
                raise InvalidArgument(
                    f"{REWARD}: {name} needs completion_ids, which only requests of programs have", key=REWARD
                )
            self._functions.append((function, weight))
        self._transcript: list[Info] = []
        self._observation = ""
        self._own_reward = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._transcript = []
        self._own_reward = 0.0
        return self._observation, {**info, "environment_reward": 0.0}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        messages = [{"role": "user", "content": self._observation}]
        answer = {"role": "assistant", "content": action}
        extends = len(self._transcript) - 1 if self._transcript else None
        self._transcript.append({"extends": extends, "messages": messages, "answer": answer})
        self._observation, own_reward, terminated, truncated, info = self.env.step(action)
        self._own_reward += float(own_reward)
        info = {**info, "environment_reward": self._own_reward}
        reward = self._own_weight * float(own_reward)
        if terminated or truncated:
            reward += self._judge(info)
        return self._observation, reward, terminated, truncated, info

    def _judge(self, info: Info) -> float:
        """The weighed sum of the functions. A function may also decide the success in ``info``."""
        row = {
            "id": str(info.get("task", "")),
            "split": str(info.get("split", "")),
            "type": str(info.get("task_type", "")),
            "environment_reward": self._own_reward,
            "success": bool(info.get("success", False)),
            **getattr(self.env.unwrapped, "reward_columns", {}),
        }
        total = 0.0
        for function, weight in self._functions:
            result = json.loads(report(call_reward(function, row, self._transcript), author(row)))
            total += weight * float(result.get("reward", 0.0))
            info["success"] = result.get("success", info.get("success", False))
        return total


def make(spec: EnvSpec, kwargs: Kwargs, **options: Any) -> gymnasium.Env[Any, Any]:
    """Build the environment that ``spec`` registers, with the reward functions of its arguments.

    options: of ``gymnasium.make``.
    """
    weights, arguments = reward_weights(spec, kwargs)
    env = gymnasium.make(spec, **options, **arguments)
    return RewardedEnv(env, weights) if weights else env


def reward_weights(spec: EnvSpec, kwargs: Kwargs) -> tuple[dict[str, float], dict[str, Any]]:
    """The weights of ``reward`` in the arguments of an environment, and the other arguments.

    An environment with an argument ``reward`` of its own keeps it.

    Raises: InvalidArgument for a value of another form, and for an environment behind a server.
    """
    if REWARD not in kwargs or takes_reward(spec):
        return {}, dict(kwargs)
    if hasattr(creator_of(spec), "open_pool"):
        raise InvalidArgument(
            f"{REWARD}: {spec.id} gets its rewards from its server", key=REWARD, advice=f"leave {REWARD} out"
        )
    arguments = {name: value for name, value in kwargs.items() if name != REWARD}
    return _weights(kwargs[REWARD]), arguments


def takes_reward(spec: EnvSpec) -> bool:
    """Whether the environment has an argument ``reward`` of its own, also within the wrapper of a plain one."""
    specs = [spec, *(value for value in spec.kwargs.values() if isinstance(value, EnvSpec))]
    return any(REWARD in inspect.signature(creator_of(each)).parameters for each in specs)


def _weights(value: object) -> dict[str, float]:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list | tuple):
        names = dict.fromkeys(names, 1.0) if all(isinstance(name, str) for name in names) else None
    advice = f"write module:function, a list, or a mapping to weights (got {value!r:.80})"
    if not isinstance(names, Mapping) or not names:
        raise InvalidArgument(f"{REWARD} must name functions", key=REWARD, advice=advice)
    for name, weight in names.items():
        if not isinstance(name, str) or (name != ENVIRONMENT and not all(name.partition(":")[::2])):
            raise InvalidArgument(f"{REWARD}: {name!r:.80} is no module:function", key=REWARD, advice=advice)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) <= 1e6:
            raise InvalidArgument(
                f"{REWARD}: the weight of {name:.80} must be a number (got {weight!r:.40})", key=REWARD
            )
    return {name: float(weight) for name, weight in names.items()}
