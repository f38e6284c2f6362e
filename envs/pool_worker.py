"""What runs inside a worker of the pool: one environment per slot, answering requests one after another.

Requests come in batches: ``("reset", slot, task, seed)``, ``("step", slot, action)`` and ``("release", slot)``. Every
reset and step is answered by one tuple, told apart by its length: ``(observation, info)``,
``(observation, reward, terminated, truncated, info)`` or ``(error,)``; a release is not answered.
"""

from __future__ import annotations

import marshal
import math
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

LONGEST_ANSWER = 64 * 2**20  # bytes; more than this from one step is a fault, not text
HEADER = struct.Struct("<I")
_SCALARS = frozenset({str, int, float, bool, type(None)})


class Garbage(ValueError):
    """An environment returned something that its contract does not allow."""


# Messages between processes -------------------------------------------------------------------------------------------


def pack(message: Any) -> bytes:
    """``message`` as one frame: its length, then its bytes.

    Marshal, not pickle: it is twice as fast to read as JSON, and it carries plain values only, so that what an
    environment returns can never make the training process import or run anything.
    """
    body = marshal.dumps(message)
    return HEADER.pack(len(body)) + body


def frames(connection: socket.socket) -> Iterator[Any]:
    """The messages that arrive on a blocking ``connection``, until the other side closes it."""
    with connection.makefile("rb", buffering=1 << 16) as reader:
        while len(header := reader.read(HEADER.size)) == HEADER.size:
            body = reader.read(HEADER.unpack(header)[0])
            try:
                yield marshal.loads(body)
            except EOFError:  # closed in the middle of a frame
                return


def plain(value: Any, place: str = "value") -> Any:
    """``value`` rebuilt of None, bool, int, float, str, list, tuple and dict with string keys.

    NumPy values become their Python equals and paths become strings; anything else raises :class:`Garbage`, which
    names its ``place``.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            return value
        return kind(plain(item, f"{place}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise Garbage(f"{place} has a key that is not a string")
        return {key: plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
        return plain(value.item(), place)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return value.tolist()
    for base in (str, bool, int, float):  # subclasses, such as enumerations
        if isinstance(value, base):
            return base(value)
    if isinstance(value, PurePath):
        return str(value)
    raise Garbage(f"{place} holds {kind.__name__}, which is not plain data (text, numbers, lists, dicts)")


def describe(error: BaseException) -> str:
    """``error`` in one line: its type, its message and, unless it is :class:`Garbage`, where it was raised."""
    try:
        message = " ".join(str(error).split())[:500]
    except Exception:
        message = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    places = traceback.extract_tb(error.__traceback__)
    if isinstance(error, Garbage) or not places:
        return text
    return f"{text} ({PurePath(places[-1].filename).name}, line {places[-1].lineno}, in {places[-1].name})"


# Environments ---------------------------------------------------------------------------------------------------------


def maker(spec: EnvSpec, kwargs: Mapping[str, Any]) -> Callable[[], gymnasium.Env]:
    """A function that builds one environment, without Gymnasium's passive checks: :class:`Host` has its own."""
    return lambda: gymnasium.make(spec, disable_env_checker=True, **kwargs)


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise Garbage(f"the observation is {type(observation).__name__}, not a string")
    if not observation.isascii():
        try:
            observation.encode()
        except UnicodeEncodeError as error:
            raise Garbage(f"the observation is not Unicode text: {error.reason} at {error.start}") from None
    return str(observation)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise Garbage(f"{name} is {type(value).__name__}, not a bool")
    return bool(value)


def _info(info: Any) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise Garbage(f"info is {type(info).__name__}, not a dict")
    return plain(info, "info")


class Host:
    """Environments by slot. An instance is reused by the next slot; one that broke is closed and never seen again."""

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = make
        self._running: dict[int, gymnasium.Env] = {}
        self._idle: list[gymnasium.Env] = [make()]  # the first one now: wrong settings fail at once

    def handle(self, request: tuple) -> tuple | None:
        """Carry out one request; whatever the environment does wrong is an answer ``(error,)``, never raised."""
        operation, slot, *arguments = request
        if operation == "release":
            if slot in self._running:
                self._idle.append(self._running.pop(slot))
            return None
        try:
            return self._step(slot, *arguments) if operation == "step" else self._reset(slot, *arguments)
        except (Exception, SystemExit) as error:
            if slot in self._running:
                _close(self._running.pop(slot))
            return (describe(error),)

    def _reset(self, slot: int, task: str, seed: int | None) -> tuple:
        if slot not in self._running:
            self._running[slot] = self._idle.pop() if self._idle else self._make()
        result = self._running[slot].reset(seed=seed, options={"task": task})
        if not isinstance(result, tuple) or len(result) != 2:
            raise Garbage("reset() did not return (observation, info)")
        return _text(result[0]), _info(result[1])

    def _step(self, slot: int, action: str) -> tuple:
        result = self._running[slot].step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise Garbage("step() did not return (observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = result
        if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):  # type: ignore[arg-type]
            raise Garbage(f"the reward is {str(reward)[:50]}, not a finite number")
        return (
            _text(observation),
            float(reward),  # type: ignore[arg-type]
            _flag(terminated, "terminated"),
            _flag(truncated, "truncated"),
            _info(info),
        )

    def close(self) -> None:
        """Close every environment; safe to call twice."""
        for env in (*self._running.values(), *self._idle):
            _close(env)
        self._running.clear()
        self._idle.clear()


def _close(env: gymnasium.Env) -> None:
    try:
        env.close()
    except (Exception, SystemExit) as error:
        print(f"closing an environment failed: {describe(error)}", file=sys.stderr)


def serve(connection: socket.socket, make: Callable[[], gymnasium.Env], process: int) -> None:
    """Answer requests until the pool closes the ``connection``.

    The first message is ``(process,)``, or ``(error, )`` when the environment cannot even be built. Each answer is
    written at once: an answer kept back for a fuller write would be lost with a crash of the next request, and the
    wrong episode blamed for it.
    """
    try:
        host = Host(make)
    except (Exception, SystemExit) as error:
        connection.sendall(pack((describe(error),)))
        return
    try:
        connection.sendall(pack((process,)))
        for requests in frames(connection):
            for request in requests:
                answer = host.handle(request)
                if answer is None:
                    continue
                frame = pack(answer)
                if len(frame) > LONGEST_ANSWER:
                    host.handle(("release", request[1]))
                    frame = pack((f"Garbage: the answer takes {len(frame)} bytes, at most {LONGEST_ANSWER} are sent",))
                connection.sendall(frame)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the pool is gone
    finally:
        host.close()
