"""What an OpenEnv server says, taken apart: nothing of it is believed before it is looked at."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from gagpo.base.errors import GagpoError
from gagpo.envs.base import Info
from gagpo.envs.tasks import Task

Json = dict[str, Any]
"""What a server answers, as JSON holds it."""

MOST_BYTES = 4 << 20  # of one message of a session: more than any model reads
ACTION = "action"  # the field of an action where a schema requires none


class ServerFailed(GagpoError):
    """The server cannot be reached, or does not speak OpenEnv."""


class ServerFull(ServerFailed):
    """The server admits no further session now."""


class WorldFailed(ServerFailed):
    """The server answers a request with an error: the episode is lost, the session may live on."""


class Observed(NamedTuple):
    """One answer of a session: what the agent sees, and what a trainer needs beside it."""

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info


def message(kind: str, data: Json) -> str:
    """A request of a session: ``reset`` or ``step``."""
    return json.dumps({"type": kind, "data": data})


def observed(url: str, raw: str | bytes, task: Task | None, turn: int) -> Observed:
    """The answer to a request, of the ``turn``-th turn of ``task``.

    A reward that is missing counts 0. Where a server does not say ``success``, an episode has succeeded when it ended
    by itself with a reward above 0; ``valid`` is true where it does not say. Raises :class:`ServerFull` where no
    session was opened, :class:`WorldFailed` where the server says what went wrong, and :class:`ServerFailed` for what
    is no answer at all.
    """
    try:
        answer = as_object(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise ServerFailed(f"{url}: what it sent is no JSON: {str(error)[:100]!a}") from None
    data = as_object(answer.get("data"))
    if answer.get("type") != "observation":
        said = " ".join(str(data.get("message", answer))[:300].split())
        raise (ServerFull if data.get("code") == "CAPACITY_REACHED" else WorldFailed)(f"{url}: {said!a}")
    facts, seen = as_object(data.get("metadata")), data.get("observation")
    reward = _reward(url, data.get("reward"))
    truncated = bool(facts.get("truncated"))
    done = bool(data.get("done"))
    actions = seen.get("admissible_actions") if isinstance(seen, dict) else None
    listed = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
    info: Info = {
        **({"task": task.id, "task_type": task.type, "split": task.split} if task else {}),
        "turn": turn,
        "success": bool(facts["success"]) if "success" in facts else done and not truncated and reward > 0,
        "valid": bool(facts.get("valid", True)),
        "state": None,
        "admissible_actions": actions if listed else None,
    }
    return Observed(_shown(seen), reward, done and not truncated, truncated, info)


def as_object(value: object) -> Json:
    """The JSON object that a server should have sent; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(seen: object) -> str:
    """The field ``text`` where that is all there is to see, else all of it as JSON."""
    if isinstance(seen, dict) and isinstance(seen.get("text"), str) and set(seen) <= {"text", "admissible_actions"}:
        text = str(seen["text"])
    else:
        text = json.dumps(seen, sort_keys=True)
    return text.encode("utf-8", "replace").decode("utf-8")  # half a character is no text


def _reward(url: str, reward: object) -> float:
    if reward is None:
        return 0.0
    if not isinstance(reward, int | float) or not abs(reward) <= 1e300 or math.isnan(reward):
        raise ServerFailed(f"{url}: a reward of {reward!a:.40} is no finite number")
    return float(reward)
