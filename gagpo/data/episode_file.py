"""The format of episode files: one episode per line, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.data.episode import Decode, Episode, prompts
from gagpo.data.turn import Call, Invalid, Turn

MOST_REFUSAL = 300  # characters written of the environment's answer to a refused action
_OF_EPISODE = ("task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome")
_OF_TURN = ("observation", "response", "action", "reward", "valid", "state")
_KNOWN_LATER = ("environment", "kept", "end_observation", "end_state")  # written if they are known


def episode_record(episode: Episode, tokens: bool = False, decode: Decode | None = None) -> dict[str, Any]:
    """The episode as JSON-ready values.

    tokens: include ids and log-probabilities.
    decode: if given, turns have their prompt as text and their response token by token with log-probabilities.
    """
    turns = []
    sent = (turn.sent for turn in episode.turns) if decode is None else prompts(episode.turns, decode)
    answers = [*(turn.observation for turn in episode.turns[1:]), episode.end_observation]
    for turn, answer, prompt in zip(episode.turns, answers, sent, strict=False):
        row: dict[str, object] = {name: getattr(turn, name) for name in _OF_TURN}
        if prompt:
            row["sent"] = prompt
        if turn.invalid:
            row["invalid"] = turn.invalid
        if turn.invalid == "refused" and answer is not None:
            row["refusal"] = answer[:MOST_REFUSAL]
        if turn.cut:
            row["cut"] = True
        if turn.calls:  # the next observation is the answer to a single call
            kept = [one if len(turn.calls) > 1 else one._replace(answer=None) for one in turn.calls]
            row["calls"] = [{name: value for name, value in one._asdict().items() if value} for one in kept]
        for name in ("advantage", "value", "group_state", "version"):
            if getattr(turn, name) is not None:
                row[name] = getattr(turn, name)
        if tokens:
            row["prompt_ids"] = turn.prompt_ids.tolist()
            row["response_ids"] = turn.response_ids.tolist()
            row["logprobs"] = [float(x) for x in turn.logprobs]
        if decode is not None and len(turn.response_ids):
            row["tokens"] = _tokens(turn, decode)
        turns.append(row)
    return {
        **{name: getattr(episode, name) for name in _OF_EPISODE},
        "reward": episode.reward,
        "restarts": episode.restarts,
        **{name: getattr(episode, name) for name in _KNOWN_LATER if getattr(episode, name) is not None},
        "info": episode.info,
        "turns": turns,
    }


def episode_from_record(record: dict[str, Any]) -> Episode:
    """The episode of a :func:`episode_record`. Raises: InvalidArgument naming the first wrong key."""
    if not isinstance(record, dict):
        raise InvalidArgument("not an object")
    episode = Episode(**_checked(record, (*_OF_EPISODE, "restarts", "info")))
    for name, value in _checked({name: record.get(name) for name in _KNOWN_LATER}, _KNOWN_LATER).items():
        setattr(episode, name, value)
    for number, row in enumerate(_checked(record, ("turns",))["turns"]):
        try:
            episode.turns.append(_turn(row))
        except InvalidArgument as error:
            raise InvalidArgument(f"turn {number}: {error}") from None
    return episode


def _turn(row: object) -> Turn:
    if not isinstance(row, dict):
        raise InvalidArgument("not an object")
    values = _checked(row, _OF_TURN)
    valid = values.pop("valid")
    given = _checked({"cut": False, "invalid": None, "sent": "", **row}, ("cut", "invalid", "sent"))
    turn = Turn(**values, cut=given["cut"], sent=given["sent"])
    turn.calls = [_call(one) for one in _checked({"calls": [], **row}, ("calls",))["calls"]]
    turn.invalid = given["invalid"] or ""
    if turn.valid != valid:
        raise InvalidArgument("keys 'valid' and 'invalid' contradict each other")
    if "response_ids" in row:
        ids = _checked(row, ("prompt_ids", "response_ids", "logprobs"))
        try:
            turn.prompt_ids = np.asarray(ids["prompt_ids"], np.int32).reshape(-1)
            turn.response_ids = np.asarray(ids["response_ids"], np.int32).reshape(-1)
            turn.logprobs = np.asarray(ids["logprobs"], np.float32).reshape(-1)
        except (ValueError, TypeError, OverflowError):
            raise InvalidArgument("keys 'prompt_ids', 'response_ids' and 'logprobs' must be lists of numbers") from None
    return turn


def _call(row: object) -> Call:
    if not isinstance(row, dict) or not all(name in Call._fields and _is_text(row[name]) for name in row):
        raise InvalidArgument(f"key 'calls' must be a list of objects of {', '.join(Call._fields)}, each a text")
    return Call(**{"action": "", **row})


def _checked(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The named values of a record. Raises: InvalidArgument for a missing or wrong one."""
    for name in names:
        expected, holds = _KINDS[name]
        if name not in record:
            raise InvalidArgument(f"key {name!r} is missing")
        if not holds(record[name]):
            raise InvalidArgument(f"key {name!r} must be {expected}, got {record[name]!r:.40}")
    return {name: record[name] for name in names}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by key: what it must be, and the check
    **dict.fromkeys(("task", "task_type", "split", "observation", "response", "action", "sent"), ("a text", _is_text)),
    **dict.fromkeys(("group", "sample", "seed", "restarts"), ("a whole number of at least 0", _is_count)),
    **dict.fromkeys(("success", "valid", "cut"), ("true or false", lambda x: isinstance(x, bool))),
    **dict.fromkeys(
        ("turns", "prompt_ids", "response_ids", "logprobs", "calls"), ("a list", lambda x: isinstance(x, list))
    ),
    **dict.fromkeys(
        ("state", "environment", "end_observation", "end_state"), ("a text or null", lambda x: x is None or _is_text(x))
    ),
    "reward": ("a finite number", _is_number),
    "temperature": ("a finite number or null", lambda x: x is None or _is_number(x)),
    "kept": ("true, false or null", lambda x: x is None or isinstance(x, bool)),
    "outcome": ("terminated, truncated or failed", lambda x: x in ("terminated", "truncated", "failed")),
    "info": ("an object", lambda x: isinstance(x, dict)),
    "invalid": ("why a turn is invalid", lambda x: x is None or x in get_args(Invalid)),
}


def _tokens(turn: Turn, decode: Decode) -> dict[str, object]:
    """The response of a turn token by token, and the length of its prompt."""
    text = [decode([token]) for token in turn.response_ids.tolist()]
    row: dict[str, object] = {"prompt": len(turn.prompt_ids), "text": text}
    columns = {
        "logprob": turn.logprobs,
        "ratio": turn.ratios,
        "gate_weight": turn.gate_weights,
        "advantage": turn.advantages,
    }
    for name, column in columns.items():
        if len(column) == len(turn.response_ids):
            row[name] = [round(float(x), 4) for x in column]
    return row


def episodes_in(path: Path) -> Iterator[Episode]:
    """Yield the episodes of a file. Raises: InvalidArgument naming file, line and key of the first damaged one."""
    for number, record in enumerate(read_episodes(path), 1):
        try:
            yield episode_from_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, line {number}: not an episode ({error})") from None


def write_episodes(path: Path, episodes: Iterable[Episode], tokens: bool = False, decode: Decode | None = None) -> None:
    """Write one line of JSON per episode, in ASCII because a response may hold half a surrogate pair."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(episode_record(episode, tokens, decode)) + "\n" for episode in episodes)


def read_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of :func:`write_episodes`. Raises: InvalidArgument naming file and line of a broken one."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(f"{path}, line {number}: not a JSON object ({error})") from None
