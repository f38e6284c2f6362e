"""A worker of the pool: one environment per slot, which answers requests one after another.

Requests come in batches: ``("reset", slot, task, seed)``, ``("step", slot, action)`` and ``("release", slot)``; a slot
is the number of an episode of the pool. Every request except a release is answered by one tuple:
``(observation, info)`` for a reset, ``(observation, reward, terminated, truncated, info)`` for a step, or
``(error,)``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import TypeGuard

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from gagpo.base.child import LONGEST_FRAME, Pipe, pack
from gagpo.base.errors import is_termination
from gagpo.base.terminal import printable
from gagpo.envs.base import Info, Kwargs
from gagpo.envs.pool.wire import Garbage, Request, describe, plain

MAX_REWARD = 1e9
FLAGS = ("success", "valid")  # entries of info that count episodes and turns: the text "no" would count as success
REWARD = "reward"  # the argument of every environment that gagpo.envs.rewarded reads
StepAnswer = tuple[str, float, bool, bool, Info]
ResetAnswer = tuple[str, Info]
Answer = StepAnswer | ResetAnswer | tuple[str]


def maker(spec: EnvSpec, kwargs: Kwargs) -> Callable[[], gymnasium.Env]:
    """A function that builds one environment; :class:`EnvironmentHost` replaces Gymnasium's passive checks."""

    def make() -> gymnasium.Env:
        if REWARD not in kwargs:
            return gymnasium.make(spec, disable_env_checker=True, **kwargs)
        from gagpo.envs import rewarded  # needs this package

        return rewarded.make(spec, kwargs, disable_env_checker=True)

    return make


def reset_answer(result: object) -> ResetAnswer:
    """The result of a ``reset`` as plain data; raises :class:`Garbage` if it breaks the contract."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise Garbage("reset() did not return (observation, info)")
    return _text(result[0]), _info(result[1])


def step_answer(result: object) -> StepAnswer:
    """The result of a ``step`` as plain data; raises :class:`Garbage` if it breaks the contract."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise Garbage("step() did not return (observation, reward, terminated, truncated, info)")
    observation, reward, terminated, truncated, info = result
    if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
        raise Garbage(f"the reward is {str(reward)[:50]}, not a finite number")
    if abs(float(reward)) > MAX_REWARD:
        raise Garbage(f"the reward is {float(reward):g}; rewards beyond {MAX_REWARD:g} cannot be normalised in float32")
    return (
        _text(observation),
        float(reward),
        _flag(terminated, "terminated"),
        _flag(truncated, "truncated"),
        _info(info),
    )


def is_answer(message: object, operation: str) -> TypeGuard[Answer]:
    """Whether ``message`` is a valid answer to ``operation``: an environment may have written into the connection."""
    if type(message) is not tuple:
        return False
    if len(message) == 1:
        return type(message[0]) is str
    try:
        answer = step_answer(message) if operation == "step" else reset_answer(message)
    except (ValueError, ArithmeticError, RecursionError):
        return False
    return list(map(type, answer)) == list(map(type, message))


def _text(observation: object) -> str:
    if not isinstance(observation, str):
        raise Garbage(f"the observation is {type(observation).__name__}, not a string")
    if not observation.isascii():
        try:
            observation.encode()
        except UnicodeEncodeError as error:
            raise Garbage(f"the observation is not Unicode text: {error.reason} at {error.start}") from None
    return str(observation)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise Garbage(f"{name} is {type(value).__name__}, not a bool")
    return bool(value)


def _info(info: object) -> Info:
    if not isinstance(info, dict):
        raise Garbage(f"info is {type(info).__name__}, not a dict")
    for name in FLAGS:
        if name in info:
            _flag(info[name], f"info[{name!r}]")
    values: Info = plain(info, "info")
    return values


class EnvironmentHost:
    """Environments by slot. An instance is reused by the next slot; one that broke is closed.

    memory_limit_mb: the limit that a MemoryError mentions; None for no limit.
    isolated: this process ignores the user's signals, so SystemExit and KeyboardInterrupt come from the environment.
        In the caller's process they may be the response to a signal, and are then raised.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], memory_limit_mb: int | None = None, isolated: bool = True):
        self._make = make
        self._isolated = isolated
        self._memory_limit_mb = memory_limit_mb
        self._envs: dict[int, gymnasium.Env] = {}
        self._idle_envs: list[gymnasium.Env] = [make()]  # one in advance, so that wrong settings fail at once

    def handle(self, request: Request) -> Answer | None:
        """Carry out one request; an error of the environment is the answer ``(error,)``, never raised."""
        operation, slot, *arguments = request
        if operation == "release":
            if slot in self._envs:
                self._idle_envs.append(self._envs.pop(slot))
            return None
        try:
            if operation == "step":
                return step_answer(self._envs[slot].step(*arguments))
            task, seed = arguments
            return reset_answer(self._env(slot).reset(seed=seed, options={"task": task}))
        except BaseException as error:
            if not self._is_fault(error):
                raise
            if slot in self._envs:
                self._close(self._envs.pop(slot))
            if isinstance(error, MemoryError) and self._memory_limit_mb is not None:
                return (f"{describe(error)}: the worker's limit is {self._memory_limit_mb} MB",)
            return (describe(error),)

    def _env(self, slot: int) -> gymnasium.Env:
        if slot not in self._envs:
            self._envs[slot] = self._idle_envs.pop() if self._idle_envs else self._make()
        return self._envs[slot]

    def close(self) -> None:
        """Close every environment; safe to call twice."""
        for env in (*self._envs.values(), *self._idle_envs):
            self._close(env)
        self._envs.clear()
        self._idle_envs.clear()

    def _close(self, env: gymnasium.Env) -> None:
        try:
            env.close()
        except BaseException as error:
            if not self._is_fault(error):
                raise
            print(printable(f"closing an environment failed: {describe(error)}"), file=sys.stderr)

    def _is_fault(self, error: BaseException) -> bool:
        """Whether the environment, not a signal, is the cause of an error."""
        return self._isolated or (isinstance(error, Exception | SystemExit) and not is_termination(error))


def serve(
    pipe: Pipe, make: Callable[[], gymnasium.Env], token: bytes, failure: str = "", memory_limit_mb: int | None = None
) -> None:
    """Answer requests until the pool closes the ``pipe``; every answer carries the ``token``.

    The first message is ``(process,)``, or ``(error,)`` after a ``failure`` to preload or to build the environment.
    Each answer is sent before the next request is begun, so that a crash belongs to the oldest unanswered one.
    """
    process = os.getpid()
    connection = pipe.socket
    try:
        host = None if failure else EnvironmentHost(make, memory_limit_mb)
    except BaseException as error:  # Ctrl-C is ignored here, so every exception comes from the environment
        host = None
        failure = describe(error)
    if host is None:
        connection.sendall(pack((failure,), token))
        return
    try:
        connection.sendall(pack((process,), token))
        while True:
            for request in pipe.receive():
                answer = host.handle(request)
                if os.getpid() != process:
                    os._exit(0)  # the environment forked and its child returned here: only the worker may answer
                if answer is None:
                    continue
                frame = pack(answer, token)
                if len(frame) > LONGEST_FRAME:
                    host.handle(("release", request[1]))
                    answer = (f"Garbage: the answer takes {len(frame)} bytes, the limit is {LONGEST_FRAME}",)
                    frame = pack(answer, token)
                connection.sendall(frame)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool is gone
    finally:
        host.close()
