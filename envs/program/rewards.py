"""Reward functions of programs: three forms, told apart by the names of their parameters.

- ``def reward(task, transcript)``: the row of the tasks file, and :mod:`gagpo.envs.program.transcripts`.
- ``def reward(completions, answer, **kwargs)``, as for TRL: lists with one item, an episode. ``prompts`` and
  ``completions`` hold lists of messages, and every key of the row is a keyword. It returns a list with one reward.
- ``def reward(completion, answer, **kwargs)``, as for verifiers: the same without the lists. ``state`` holds all of it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from gagpo.base.errors import first_line
from gagpo.envs.pool.wire import Garbage
from gagpo.envs.program.messages import Json
from gagpo.envs.program.transcripts import prompt_and_completion

_RESERVED = ("prompt", "completion", "completion_ids")  # keys of a row that TRL does not pass on


class RewardError(Garbage):
    """A reward function that raised, or returned no reward. The message names its file and line, and the row."""


def call_reward(function: Callable[..., Any], row: Json, transcript: Sequence[Json]) -> object:
    """What a reward function returns for an episode; of a list with one item, the item.

    row: of the task.

    Raises: RewardError naming file, line and row.
    """
    try:
        result = function(*_positional(function, row, transcript), **_keywords(function, row, transcript))
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except (Exception, SystemExit) as error:
        if isinstance(error, RewardError):
            raise
        text = first_line(error)
        problem = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise RewardError(f"{_place(function, error)}: {problem} ({_name(row)})") from None
    if "completions" in _parameters(function):
        result = _only_item(result, row)
    if result is None:
        raise RewardError(f"{author(row)} returned None; return a number")
    return result


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters by name; none for a callable without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _positional(function: Callable[..., Any], row: Json, transcript: Sequence[Json]) -> tuple[object, ...]:
    """The positional arguments: those of the first form."""
    names = _parameters(function)
    return () if "completions" in names or "completion" in names else (row, transcript)


def _keywords(function: Callable[..., Any], row: Json, transcript: Sequence[Json]) -> Json:
    """The keyword arguments: those of the second and third form that the function takes."""
    parameters = _parameters(function)
    is_batched = "completions" in parameters
    if not is_batched and "completion" not in parameters:
        return {}
    prompt, completion = prompt_and_completion(transcript)
    columns = {key: value for key, value in row.items() if key not in _RESERVED}
    if is_batched:
        # TRL passes these three; what is logged through them has no place here.
        offered: Json = {"trainer_state": None, "log_extra": _log_nothing, "log_metric": _log_nothing}
        offered |= {key: [value] for key, value in columns.items()}
        offered |= {"prompts": [prompt], "completions": [completion]}
    else:
        messages = {"prompt": prompt, "completion": completion}
        offered = {"state": {**columns, **messages}, **columns, **messages}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    missing = [name for name in required if name not in offered]
    if missing:
        raise RewardError(f"{author(row)} needs {missing[0]!r}; choose from {', '.join(sorted(offered))}")
    return {name: value for name, value in offered.items() if takes_all or name in parameters}


def _log_nothing(*arguments: object) -> None:
    """Stands for the functions through which TRL's reward functions log."""


def _only_item(result: object, row: Json) -> object:
    """The reward in a list with one item; a single reward as it is."""
    if (
        isinstance(result, str | bytes | Mapping)
        or not isinstance(result, Sized)
        or getattr(result, "shape", None) == ()
    ):
        return result
    if len(result) != 1:
        raise RewardError(f"{author(row)} returned {len(result)} rewards; return a list with one")
    return next(iter(result))  # type: ignore[call-overload]


def _place(function: Callable[..., Any], error: BaseException) -> str:
    """Where an error was raised: the last line of the function's file, else the last line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(_inner(function)), "__code__", None)
    in_file = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    frame = (in_file or frames)[-1]
    path = os.path.relpath(frame.filename)
    return f"{frame.filename if path.startswith('..') else path}, line {frame.lineno}, in {frame.name}"


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a partial, or the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else getattr(function, "__call__", function)  # noqa: B004


def author(row: Json) -> str:
    """The reward function of a row, for errors."""
    return f"the reward function ({_name(row)})"


def _name(row: Json) -> str:
    return f"row {row.get('id')!a:.80}"
