"""Parse and check the messages of an OpenEnv server."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from gagpo.base.errors import GagpoError
from gagpo.envs.base import Info
from gagpo.envs.tasks import Task

Json = dict[str, Any]  # a JSON object

MOST_BYTES = 4 << 20  # of one message of a session
ACTION = "action"  # the field of an action, if its schema requires none


class ServerFailed(GagpoError):
    """The server cannot be reached, or does not speak OpenEnv."""


class ServerFull(ServerFailed):
    """The server admits no more sessions now."""


class EpisodeFailed(ServerFailed):
    """The server answered with an error: the episode is lost, but the session may continue."""


class Observed(NamedTuple):
    """An answer of a session."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info


def message(kind: str, data: Json) -> str:
    """A request of a session: ``reset`` or ``step``."""
    return json.dumps({"type": kind, "data": data})


def observed(url: str, raw: str | bytes, task: Task, turn: int) -> Observed:
    """The answer in the message ``raw``, at turn ``turn`` of ``task``.

    Defaults of missing fields: a reward of 0, ``success`` if the episode terminated with a reward above 0, ``valid``.

    Raises:
        ServerFull: the server did not open a session.
        EpisodeFailed: the server reports an error.
        ServerFailed: the message is not an answer.
    """
    try:
        answer = as_object(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise ServerFailed(f"{url}: the message is not JSON: {str(error)[:100]!a}") from None
    data = as_object(answer.get("data"))
    if answer.get("type") != "observation":
        said = " ".join(str(data.get("message", answer))[:300].split())
        raise (ServerFull if data.get("code") == "CAPACITY_REACHED" else EpisodeFailed)(f"{url}: {said!a}")
    facts, seen = as_object(data.get("metadata")), data.get("observation")
    reward = _reward(url, data.get("reward"))
    done, truncated = _flag(url, data, "done", False), _flag(url, facts, "truncated", False)
    actions = seen.get("admissible_actions") if isinstance(seen, dict) else None
    listed = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
    info: Info = {
        "task": task.id,
        "task_type": task.type,
        "split": task.split,
        "turn": turn,
        "success": _flag(url, facts, "success", done and not truncated and reward > 0),
        "valid": _flag(url, facts, "valid", True),
        "state": None,
        "admissible_actions": actions if listed else None,
    }
    return Observed(_shown(seen), reward, done and not truncated, truncated, info)


def as_object(value: object) -> Json:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _flag(url: str, facts: Json, name: str, default: bool) -> bool:
    value = facts.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ServerFailed(f"{url}: {name} must be true or false, got {value!a:.40}")
    return value


def _shown(seen: object) -> str:
    """The field ``text`` if the observation has no other, else the whole observation as JSON."""
    if isinstance(seen, dict) and isinstance(seen.get("text"), str) and set(seen) <= {"text", "admissible_actions"}:
        text = str(seen["text"])
    else:
        text = json.dumps(seen, sort_keys=True)
    return text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates


def _reward(url: str, reward: object) -> float:
    if reward is None:
        return 0.0
    if not isinstance(reward, int | float) or not abs(reward) <= 1e300 or math.isnan(reward):
        raise ServerFailed(f"{url}: the reward must be a finite number, got {reward!a:.40}")
    return float(reward)
