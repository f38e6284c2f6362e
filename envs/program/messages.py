"""What a program asks and what it gets, whichever protocol it speaks."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from gagpo.base.errors import GagpoError
from gagpo.base.options import problems, sentence

Json = dict[str, Any]  # a JSON object
Message = dict[str, Any]  # as chat templates take it: role, content, tool_calls, tool_call_id

_IDLE = {"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
_IDLE_OBJECTS: Json = {"logit_bias": {}, "top_logprobs": 0, "response_format": {"type": "text"}}


class RequestRefused(GagpoError):
    """A request that gets no answer. status: of HTTP."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def _text(content: object) -> object:
    """The text of a message, which may be a list of parts of text."""
    if isinstance(content, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in content):
        return "".join(one["text"] for one in content)
    return content


def _arguments(text: object) -> object:
    """The arguments of a call that a program sends back; it may have kept what a model wrote."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": str(text)}


class _Said(BaseModel):
    name: str
    arguments: Annotated[Json, BeforeValidator(_arguments)] = {}


class _Call(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Said


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)] = ""
    tool_calls: list[_Call] = []
    tool_call_id: str = ""

    @property
    def shown(self) -> Message:
        given = {name: value for name, value in self.model_dump().items() if value}
        return {**given, "content": self.content}


class _Function(BaseModel):
    name: str
    description: str = ""
    parameters: Json = {"type": "object"}


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class ChatRequest(BaseModel):
    """A request for ``n`` answers, as OpenAI's chat completions write it; other keys have no effect."""

    messages: list[_Message]
    tools: list[_Tool] = []
    tool_choice: object = "auto"
    model: str = ""
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        BeforeValidator(lambda one: [one] if isinstance(one, str) else one),
    ] = Field([], max_length=16)
    n: int = Field(1, ge=1, le=16)
    logprobs: bool = False
    stream: bool = False
    stream_options: Json = {}

    @classmethod
    def of(cls, body: Json) -> ChatRequest:
        """The request in the JSON of a client. Raises: RequestRefused."""
        for name, idle in {**_IDLE, **_IDLE_OBJECTS}.items():
            if body.get(name) not in (None, idle):
                reason = "responses are sampled from the model's own distribution, which training needs"
                raise RequestRefused(400, f"{name}={body[name]!a:.40} is not supported: {reason}; leave it out")
        try:
            request = cls.model_validate(_given(body))
        except ValidationError as error:
            place, message, _ = problems(error)[0]
            raise RequestRefused(400, f"{sentence(place, message):.200}; only text is supported") from None
        if not request.messages or request.messages[-1].role == "assistant":
            raise RequestRefused(400, "messages: the last must come from the user or a tool, not from the model")
        return request

    @functools.cached_property
    def conversation(self) -> list[Message]:
        """The messages as chat templates take them: one of the system, then the others."""
        system = "\n\n".join(one.content for one in self.messages if one.role in ("system", "developer"))
        others = [one.shown for one in self.messages if one.role not in ("system", "developer")]
        return [*([{"role": "system", "content": system}] if system else []), *others]

    @property
    def functions(self) -> list[Json]:
        """The tools as chat templates take them; none if none may be called."""
        return [] if self.tool_choice == "none" else [one.model_dump() for one in self.tools]

    @property
    def observation(self) -> str:
        """What the program says after the last answer."""
        last = max((i for i, one in enumerate(self.messages) if one.role == "assistant"), default=-1)
        return "\n\n".join(one.content for one in self.messages[last + 1 :])


def _given(value: Any) -> Any:
    """JSON without null, which clients send for what is not given."""
    if isinstance(value, dict):
        return {name: _given(one) for name, one in value.items() if one is not None}
    return [_given(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Completion:
    """An answer.

    content: its text, without the calls.
    calls: tool calls as chat templates take them, with arguments as a JSON object.
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
    def text(self) -> str:
        """The content and the calls, one per line: equal for equal answers."""
        calls = (json.dumps(call["function"], ensure_ascii=False) for call in self.calls)
        return "\n".join(filter(None, (self.content, *calls)))

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
        """The answer in a conversation."""
        return {"role": "assistant", "content": self.content, **({"tool_calls": self.calls} if self.calls else {})}


def digest(message: Message) -> bytes:
    """Equal for messages with equal role, text and calls; ids of calls do not count."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return hashlib.sha256(json.dumps([message["role"], message["content"], calls], sort_keys=True).encode()).digest()


def objects(body: Json, key: str) -> list[Json]:
    """The objects listed at ``key``. Raises: RequestRefused."""
    value = body.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise RequestRefused(400, f"{key} must be a list of objects")
    return value


def events(listed: Sequence[tuple[str, Json]]) -> str:
    """Server-sent events, each with its type, as text."""
    return "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in listed)
