"""What a program asks and what it gets, whichever protocol it speaks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gagpo.base.errors import GagpoError

Json = dict[str, Any]  # a JSON object
Message = dict[str, Any]  # as chat templates take it: role, content, tool_calls, tool_call_id


class Refused(GagpoError):
    """A request that gets no answer. status: of HTTP."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class ChatRequest:
    """A request for one or several answers.

    messages: the conversation.
    tools: JSON schemas of functions, as chat templates take them.
    max_tokens: most tokens of an answer; the run's own limit applies too.
    stop: strings that end an answer and are left out of it.
    choices: number of answers.
    logprobs: whether the answer lists its tokens.
    stream: whether it is sent as events, with ``usage`` at their end.
    """

    messages: list[Message]
    tools: list[Json]
    model: str = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    logprobs: bool = False
    stream: bool = False
    usage: bool = False

    @property
    def observation(self) -> str:
        """What the program says after the last answer."""
        last = max((i for i, one in enumerate(self.messages) if one["role"] == "assistant"), default=-1)
        return "\n\n".join(one["content"] for one in self.messages[last + 1 :])


@dataclass(frozen=True)
class Completion:
    """An answer.

    content: its text, without the calls.
    calls: tool calls: id, name, and arguments as a JSON object.
    finish: ``stop``, ``length`` or ``tool_calls``.
    usage: tokens of the prompt and of the answer.
    logprobs: token and log-probability of each sampled token, if asked for.
    """

    content: str = ""
    calls: list[Json] = field(default_factory=list)
    finish: str = "stop"
    usage: Sequence[int] = (0, 0)
    logprobs: Sequence[tuple[str, float]] = ()

    @property
    def action(self) -> str:
        """The answer as an action of a pool."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, ensure_ascii=False)

    @classmethod
    def of(cls, action: str) -> Completion:
        """The answer in an :attr:`action`; any other text is its content."""
        try:
            return cls(**json.loads(action))
        except (ValueError, TypeError, RecursionError):
            return cls(action)

    @property
    def message(self) -> Message:
        return assistant(self.content, self.calls)


def assistant(content: str, calls: Sequence[Mapping[str, Any]] = ()) -> Message:
    """An answer as a message of a conversation."""
    called = [
        {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
        for one in calls
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": called} if called else {})}


def digest(message: Message) -> bytes:
    """Equal for messages with equal role, text and calls; ids of calls do not count."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return hashlib.sha256(json.dumps([message["role"], message["content"], calls], sort_keys=True).encode()).digest()


def objects(body: Json, key: str) -> list[Json]:
    """The objects listed at ``key``. Raises: Refused."""
    value = body.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Refused(400, f"{key} must be a list of objects")
    return value


def events(listed: Sequence[tuple[str, Json]]) -> str:
    """Server-sent events, each with its type, as text."""
    return "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in listed)
