"""Reward functions of programs, called by the names of their parameters.

A function may name, in any order, columns of the task's row and the names of one of these forms:

- ``task``, ``transcript``: the row, and :mod:`gagpo.envs.rewards.transcripts`.
- ``prompts``, ``completions``, ``completion_ids``, as for TRL: lists with one item, an episode. Every column is a list
  with one value too, and so is what it returns; None there is no reward.
- ``prompt``, ``completion``, ``state``, ``info``, ``task``, ``parser``, as for verifiers: the same without the lists.
- ``data_source``, ``solution_str``, ``ground_truth``, ``extra_info``, as for verl, or the plurals of its batches.

Where the row has a column ``prompt`` that is text, prompts and completions are texts, as in TRL; otherwise messages.
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
from gagpo.envs.gateway.messages import Json
from gagpo.envs.pool.wire import Garbage
from gagpo.envs.rewards.transcripts import conversation, prompt_and_completion

OWN = ("task", "transcript")
TRL = ("prompts", "completions", "completion_ids")
VERIFIERS = ("prompt", "completion", "state", "info", "task", "parser")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
_ALSO_TRL = ("trainer_state", "log_extra", "log_metric")
_RESERVED = ("prompt", "completion", "completion_ids")  # keys of a row that TRL does not pass on
_OF_TASK = ("id", "split", "type")


class RewardError(Garbage):
    """A reward function that raised, or returned no reward. The message names its file and line, and the row."""


def call_reward(function: Callable[..., Any], row: Json, transcript: Sequence[Json]) -> object:
    """What a reward function returns for an episode; of a list with one item, the item.

    row: of the task.

    Raises: RewardError naming file, line and row.
    """
    try:
        positional, keywords = _arguments(function, row, transcript)
        result = function(*positional, **keywords)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except (Exception, SystemExit) as error:
        if isinstance(error, RewardError):
            raise
        text = first_line(error)
        problem = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise RewardError(f"{_place(function, error)}: {problem} ({_name(row)})") from None
    if _form(function) in (TRL, VERL_BATCH):
        result = _only_item(result, row)
        result = 0.0 if result is None else result  # as in TRL: this function does not reward the episode
    if result is None:
        raise RewardError(f"{author(row)} returned None; return a number")
    if isinstance(result, Mapping) and "score" in result and "reward" not in result:  # as for verl
        result = {"reward": result["score"]}
    return result


def secret_columns(function: Callable[..., Any]) -> list[str]:
    """The columns that a function names, which its program must not get: they are usually the right answer.

    Names of a form are no columns, apart from those that verl reads from a column.
    """
    names = [name for name in _names(function) if name not in (*TRL, *_ALSO_TRL, *_OF_TASK)]
    if _form(function) in (VERL, VERL_BATCH):
        names = [name.removesuffix("s") if name in VERL_BATCH else name for name in names]
        secret = {"ground_truth": ["reward_model", "ground_truth", "answer"], "extra_info": ["extra_info"]}
        return [column for name in names for column in secret.get(name, [] if name in VERL else [name])]
    return [name for name in names if name not in ("prompt", "completion", "state", "task", "parser", "transcript")]


def needs_token_ids(function: Callable[..., Any]) -> bool:
    """Whether a function names the ids of the sampled tokens."""
    return "completion_ids" in _names(function)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters by name; none for a callable without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _names(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that stand for one argument each."""
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [name for name, parameter in _parameters(function).items() if parameter.kind not in several]


def _form(function: Callable[..., Any]) -> tuple[str, ...]:
    """The form that the names of the parameters belong to; that of TRL for ``**kwargs`` alone."""
    names = set(_names(function))
    parameter_kinds = {parameter.kind for parameter in _parameters(function).values()}
    if names & set(TRL) or parameter_kinds == {inspect.Parameter.VAR_KEYWORD}:
        return TRL
    for parameters, name in ((VERL, "solution_str"), (VERL_BATCH, "solution_strs"), (OWN, "transcript")):
        if name in names:
            return parameters
    return VERIFIERS if names & set(VERIFIERS) - {"task"} else OWN


def _arguments(
    function: Callable[..., Any], row: Json, transcript: Sequence[Json]
) -> tuple[tuple[object, ...], dict[str, Any]]:
    """The positional and the keyword arguments; the row and the transcript for a function without names."""
    names = _names(function)
    parameters = _parameters(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not names and not takes_all:
        return (row, transcript), {}
    offered = _offered(_form(function), row, transcript)
    required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
    missing = [name for name in required if name not in offered]
    if missing:
        signatures = "; ".join(", ".join(form) for form in (OWN, TRL, VERIFIERS, VERL))
        columns = ", ".join(key for key in row if key not in _RESERVED)
        raise RewardError(
            f"{author(row)} needs {missing[0]!r}; name columns ({columns:.300}) and the names of one form: {signatures}"
        )
    # By name wherever Python allows it; default values of positional-only parameters stand between others.
    only_positional = [name for name in names if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    positional = tuple(offered.get(name, parameters[name].default) for name in only_positional)
    keywords = {name: value for name, value in offered.items() if takes_all or name in names}
    return positional, {name: value for name, value in keywords.items() if name not in only_positional}


def _offered(form: tuple[str, ...], row: Json, transcript: Sequence[Json]) -> Json:
    """Everything that a function of a form can name."""
    columns = {key: value for key, value in row.items() if key not in _RESERVED}
    if form == OWN:
        return {**columns, "task": row, "transcript": transcript}
    prompt, completion = prompt_and_completion(transcript)
    if form in (VERL, VERL_BATCH):
        truth = row.get("reward_model")
        nested = truth.get("ground_truth") if isinstance(truth, Mapping) else None
        offered: Json = {**columns, "data_source": row.get("data_source", ""), "extra_info": row.get("extra_info", {})}
        offered |= {"solution_str": completion[-1]["content"]}
        offered |= {"ground_truth": row.get("ground_truth", row.get("answer") if nested is None else nested)}
        return offered if form == VERL else {f"{name}s" if name in VERL else name: [offered[name]] for name in offered}
    messages: Json = {"prompt": prompt, "completion": completion}
    if isinstance(row.get("prompt"), str):  # not conversational
        messages = {"prompt": row["prompt"], "completion": completion[-1]["content"]}
    if form == TRL:
        # TRL passes these three; what is logged through them has no place here.
        listed: Json = {"trainer_state": None, "log_extra": _log_nothing, "log_metric": _log_nothing}
        listed |= {key: [value] for key, value in columns.items()}
        ids = [number for entry in conversation(transcript) for number in entry.get("ids", ())]
        return listed | {f"{name}s": [value] for name, value in messages.items()} | {"completion_ids": [ids]}
    steps = [{"prompt": entry["messages"], "completion": [entry["answer"]]} for entry in transcript]
    offered = {"info": {}, "answer": "", **columns, **messages, "task": row.get("task", "default")}
    return {**offered, "state": {**offered, "trajectory": steps}, "parser": Parser()}


class Parser:
    """The parser that functions for verifiers get: it takes the text as it is."""

    def parse(self, text: str) -> str:
        """The text."""
        return text

    def parse_answer(self, completion: str | Sequence[Json]) -> str | None:
        """The text of the last answer; None without an answer."""
        if isinstance(completion, str):
            return completion
        answers = [message["content"] for message in completion if message["role"] == "assistant"]
        return answers[-1] if answers else None


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
