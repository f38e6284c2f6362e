"""The format of episode files: one episode per line, as JSON in ASCII.

An episode's keys are those of :class:`Episode`, its turns' those of :class:`Turn`. Keys of training stand in the same
objects: ``kept`` in the episode (:attr:`TurnCredit.trained_on`), ``advantage``, ``value`` and ``group_state`` in the
turn, and one number per response token in the turn's ``tokens``. Keys without a value are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.data.episode import Decode, Episode, prompt_texts
from gagpo.data.turn import Call, Invalid, Turn
from gagpo.data.turn_credit import TurnCredit

MOST_REFUSAL = 300  # characters written of the environment's answer to a refused action
_EPISODE_KEYS = ("task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome")
_TURN_KEYS = ("observation", "response", "action", "reward", "valid", "state")
_END_KEYS = ("end_observation", "end_state")
_OPTIONAL: dict[str, Any] = {"cut": False, "invalid": None, "sent": "", "screenshot": "", "diff": ""}
_CREDIT_KEYS = ("advantage", "value", "group_state")
_TOKEN_COLUMNS = {"ratio": "ratios", "gate_weight": "gate_weights", "advantage": "advantages"}


# Writing --------------------------------------------------------------------------------------------------------------


def write_episodes(
    path: Path,
    episodes: Iterable[Episode],
    tokens: bool = False,
    decode: Decode | None = None,
    credits: Iterable[Sequence[TurnCredit]] | None = None,
) -> None:
    """Write one line per episode, in ASCII because a response may hold half a surrogate pair.

    credits: of each episode's turns, after training.
    tokens, decode: see :func:`episode_record`.
    """
    with path.open("w", encoding="utf-8") as file:
        pairs = zip(episodes, repeat(None)) if credits is None else zip(episodes, credits, strict=True)
        for episode, episode_credits in pairs:
            file.write(json.dumps(episode_record(episode, tokens, decode, episode_credits)) + "\n")


def episode_record(
    episode: Episode,
    tokens: bool = False,
    decode: Decode | None = None,
    credits: Sequence[TurnCredit] | None = None,
) -> dict[str, Any]:
    """The episode as JSON-ready values.

    tokens: include ids and log-probabilities.
    decode: if given, turns have their prompt as text and their response token by token with log-probabilities.
    credits: of the turns, after training.
    """
    record: dict[str, Any] = {name: getattr(episode, name) for name in _EPISODE_KEYS}
    record["reward"] = episode.reward
    record["restarts"] = episode.restarts
    if episode.environment is not None:
        record["environment"] = episode.environment
    if credits is not None:
        record["kept"] = any(credit.trained_on for credit in credits)
    record |= {name: getattr(episode, name) for name in _END_KEYS if getattr(episode, name) is not None}
    record["info"] = episode.info

    prompts = (turn.sent for turn in episode.turns) if decode is None else prompt_texts(episode.turns, decode)
    next_observations = [*(turn.observation for turn in episode.turns[1:]), episode.end_observation]
    turn_credits = credits or [TurnCredit()] * len(episode.turns)
    rows = zip(episode.turns, prompts, next_observations[: len(episode.turns)], turn_credits, strict=True)
    record["turns"] = []
    for turn, prompt, next_observation, credit in rows:
        row = _turn_record(turn, prompt, next_observation, credit)
        if tokens:
            row["prompt_ids"] = turn.prompt_ids.tolist()
            row["response_ids"] = turn.response_ids.tolist()
            row["logprobs"] = [float(logprob) for logprob in turn.logprobs]
        if decode is not None and len(turn.response_ids):
            row["tokens"] = _tokens_record(turn, credit, decode)
        record["turns"].append(row)
    return record


def _turn_record(turn: Turn, prompt: str, next_observation: str | None, credit: TurnCredit) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(turn, name) for name in _TURN_KEYS}
    if prompt:
        row["sent"] = prompt
    if turn.screenshot:
        row["screenshot"] = turn.screenshot
    if turn.diff:
        row["diff"] = turn.diff
    if turn.invalid:
        row["invalid"] = turn.invalid
    if turn.invalid == "refused" and next_observation is not None:
        row["refusal"] = next_observation[:MOST_REFUSAL]
    if turn.cut:
        row["cut"] = True
    if turn.calls:
        calls: Iterable[Call] = turn.calls
        if len(turn.calls) == 1:  # the next observation is the answer to a single call
            calls = [turn.calls[0]._replace(answer=None)]
        row["calls"] = [{name: value for name, value in call._asdict().items() if value} for call in calls]
    row |= {name: getattr(credit, name) for name in _CREDIT_KEYS if getattr(credit, name) is not None}
    if turn.version is not None:
        row["version"] = turn.version
    return row


def _tokens_record(turn: Turn, credit: TurnCredit, decode: Decode) -> dict[str, Any]:
    """The response of a turn token by token, and the length of its prompt."""
    text = [decode([token]) for token in turn.response_ids.tolist()]
    row: dict[str, Any] = {"prompt": len(turn.prompt_ids), "text": text}
    columns = {"logprob": turn.logprobs} | {key: getattr(credit, name) for key, name in _TOKEN_COLUMNS.items()}
    for key, column in columns.items():
        if len(column) == len(turn.response_ids):
            row[key] = [round(float(number), 4) for number in column]
    return row


# Reading --------------------------------------------------------------------------------------------------------------


def read_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of :func:`write_episodes`. Raises: InvalidArgument naming file and line of a broken one."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(f"not a JSON object ({error})", where=f"{path}, line {number}") from None


def episodes_in(path: Path) -> Iterator[Episode]:
    """Yield the episodes of a file. Raises: InvalidArgument naming file, line and key of the first damaged one."""
    for number, record in enumerate(read_episodes(path), 1):
        try:
            yield episode_from_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"not an episode ({error})", key=error.key, where=f"{path}, line {number}") from None


def episode_from_record(record: dict[str, Any]) -> Episode:
    """The episode of an :func:`episode_record`. Raises: InvalidArgument naming the first wrong key."""
    if not isinstance(record, dict):
        raise InvalidArgument("not an object")
    optional = {name: record.get(name) for name in ("environment", *_END_KEYS)}
    episode = Episode(
        **_checked(record, (*_EPISODE_KEYS, "restarts", "info")),
        **_checked(optional, optional),
    )
    for number, row in enumerate(_checked(record, ("turns",))["turns"]):
        try:
            episode.turns.append(_turn(row))
        except InvalidArgument as error:
            raise InvalidArgument(error, where=f"turn {number}") from None
    return episode


def credits_from_record(record: dict[str, Any]) -> list[TurnCredit] | None:
    """The credit of the turns of an :func:`episode_record`; None if it is not of training.

    Numbers of tokens are rounded to four digits, as they are written. Raises: InvalidArgument naming the first wrong
    key.
    """
    trained_on = _checked({"kept": record.get("kept")}, ("kept",))["kept"]
    if trained_on is None:
        return None
    credits = []
    for row in _checked(record, ("turns",))["turns"]:
        numbers = _checked({name: row.get(name) for name in _CREDIT_KEYS}, _CREDIT_KEYS)
        tokens = row.get("tokens") or {}
        columns: dict[str, Any] = {
            name: np.asarray(tokens.get(key) or [], np.float32) for key, name in _TOKEN_COLUMNS.items()
        }
        credits.append(TurnCredit(trained_on, **numbers, **columns))
    return credits


def _turn(row: object) -> Turn:
    if not isinstance(row, dict):
        raise InvalidArgument("not an object")
    values = _checked(row, _TURN_KEYS)
    valid = values.pop("valid")
    values |= _checked(_OPTIONAL | row, _OPTIONAL)
    values["invalid"] = values["invalid"] or ""
    calls = tuple(_call(call) for call in _checked({"calls": [], **row}, ("calls",))["calls"])
    if "response_ids" in row:
        values |= _token_columns(row)
    turn = Turn(**values, calls=calls)
    if turn.valid != valid:
        raise InvalidArgument("keys 'valid' and 'invalid' contradict each other", key="valid")
    return turn


def _token_columns(row: dict[str, Any]) -> dict[str, np.ndarray]:
    types = {"prompt_ids": np.int32, "response_ids": np.int32, "logprobs": np.float32}
    columns = _checked(row, types)
    try:
        return {name: np.asarray(columns[name], dtype).reshape(-1) for name, dtype in types.items()}
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument(
            "keys 'prompt_ids', 'response_ids' and 'logprobs' must be lists of numbers", key="prompt_ids"
        ) from None


def _call(row: object) -> Call:
    if not isinstance(row, dict) or not all(name in Call._fields and _is_text(row[name]) for name in row):
        raise InvalidArgument(
            f"key 'calls' must be a list of objects of {', '.join(Call._fields)}, each a text", key="calls"
        )
    return Call(**{"action": "", **row})


def _checked(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The named values of a record. Raises: InvalidArgument for a missing or wrong one."""
    values = {}
    for name in names:
        expected, accepts = _KINDS[name]
        if name not in record:
            raise InvalidArgument(f"key {name!r} is missing", key=name)
        if not accepts(record[name]):
            raise InvalidArgument(f"key {name!r} must be {expected}, got {record[name]!r:.40}", key=name)
        values[name] = record[name]
    return values


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


_Kind = tuple[str, Callable[[Any], bool]]  # what a value must be, and the check


def _or_null(kind: _Kind) -> _Kind:
    expected, accepts = kind
    return f"{expected} or null", lambda value: value is None or accepts(value)


_TEXT: _Kind = ("a text", _is_text)
_COUNT: _Kind = ("a whole number of at least 0", _is_count)
_FLAG: _Kind = ("true or false", _is_flag)
_LIST: _Kind = ("a list", _is_list)
_NUMBER: _Kind = ("a finite number", _is_number)
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("task", "task_type", "split", "observation", "response", "action", "sent"), _TEXT),
    **dict.fromkeys(("screenshot", "diff"), _TEXT),
    **dict.fromkeys(("group", "sample", "seed", "restarts"), _COUNT),
    **dict.fromkeys(("success", "valid", "cut"), _FLAG),
    **dict.fromkeys(("turns", "prompt_ids", "response_ids", "logprobs", "calls"), _LIST),
    **dict.fromkeys(("state", "environment", "end_observation", "end_state"), _or_null(_TEXT)),
    **dict.fromkeys(("temperature", "advantage", "value"), _or_null(_NUMBER)),
    "reward": _NUMBER,
    "group_state": _or_null(_COUNT),
    "kept": _or_null(_FLAG),
    "outcome": ("terminated, truncated or failed", lambda value: value in ("terminated", "truncated", "failed")),
    "info": ("an object", lambda value: isinstance(value, dict)),
    "invalid": ("why a turn is invalid", lambda value: value is None or value in get_args(Invalid)),
}
