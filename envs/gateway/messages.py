"""Requests of programs and their answers, independent of the protocol."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gagpo.base.errors import GagpoError, first_line
from gagpo.base.options import problems, sentence
from gagpo.envs.gateway import json_values
from gagpo.envs.gateway.json_values import JsonTooLarge

Json = dict[str, Any]  # a JSON object
Message = dict[str, Any]  # as chat templates take it: role, content, tool_calls, tool_call_id
Located = tuple[str, Json]  # an object of a request, and the key at which the client finds it

LOG = logging.getLogger("gagpo")
MAX_MESSAGES = 5_000
MAX_TOOLS = 512
_MAX_REASON = 500  # characters

_MAX_REPORTED = 20
_REPORTED: set[tuple[object, ...]] = set()  # places whose failures are logged already

_SYSTEM = ("system", "developer")
_TEXT_PARTS = (None, "text", "input_text", "output_text")  # types of the parts of a message
_UNSUPPORTED_PARTS = ("function_call", "audio")  # parts of an answer that no chat template shows

Model = TypeVar("Model", bound=BaseModel)

MAX_REWARD = 1e9


class GatewayError(GagpoError):
    """A request that gets an error as its answer.

    status: of HTTP; 499 if the client hung up, 500 for a fault of the gateway.
    reason: one line for the program. The user sees it if the program gets no other answer, so it is safe to print.
    """

    def __init__(self, status: int, reason: str):
        super().__init__("".join(letter if letter.isprintable() else " " for letter in reason[:_MAX_REASON]))
        self.status = status


def unexpected(error: Exception) -> GatewayError:
    """The answer to a request that failed by a fault of the gateway; logs one line for each place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    location: tuple[object, ...] = (type(error).__name__,)
    if frames:
        location += (frames[-1].filename, frames[-1].lineno)
    failure = GatewayError(500, f"the gateway failed: {type(error).__name__}: {first_line(error)}")
    if location not in _REPORTED and len(_REPORTED) < _MAX_REPORTED:
        _REPORTED.add(location)
        LOG.error("a request of a program got status 500, and its episode goes on: %s", failure)
    return failure


# Requests -------------------------------------------------------------------------------------------------------------

# The types of the packages openai and anthropic are not used. They describe what servers may support and ignore unknown
# keys, so they accept most of what the gateway must reject; a wrong message has an error for each type of their unions.


def _text(content: object) -> object:
    """The text of a message, which may be a list of parts of text."""
    if isinstance(content, list) and all(map(_is_text, content)):
        return "".join(text_part["text"] for text_part in content)
    return content


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type") in _TEXT_PARTS


class _RequestObject(BaseModel):
    """An object of a request. A null counts as a missing key: clients send it for options that are not set."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if field is not None}


class _CalledFunction(_RequestObject):
    name: str
    arguments: Json = {}

    @field_validator("arguments", mode="before")
    @classmethod
    def _parsed(cls, arguments: object, info: ValidationInfo) -> object:
        """The arguments of a call that a program sends back, which may be any text that a model wrote."""
        if not isinstance(arguments, str):
            return arguments if isinstance(arguments, dict) else {"arguments": str(arguments)}
        # One budget for all calls of a request: arguments are JSON within JSON, which the body's limit does not count.
        budget = (info.context or {}).get("values", [json_values.MAX_VALUES])
        try:
            value = json_values.parse(arguments, budget[0])
        except JsonTooLarge as error:
            raise ValueError(str(error)) from None
        except ValueError:
            value = None
        budget[0] -= json_values.count_values(arguments, budget[0])
        return value if isinstance(value, dict) else {"arguments": arguments}


class _Call(_RequestObject):
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class ChatMessage(_RequestObject):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)] = ""
    tool_calls: Annotated[list[_Call], FailFast()] = []
    tool_call_id: str = ""

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        for name in _UNSUPPORTED_PARTS:
            if isinstance(value, dict) and value.get(name) is not None:
                raise ValueError(f"{name} is not supported; send the text, or tool_calls")
        return value

    @property
    def for_template(self) -> Message:
        """The message as chat templates take it."""
        return {**{name: value for name, value in self.model_dump().items() if value}, "content": self.content}


class _Function(_RequestObject):
    name: str
    description: str = ""
    parameters: Json = {"type": "object"}


class _Tool(_RequestObject):
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(_RequestObject):
    include_usage: bool = False


class ChatRequest(_RequestObject):
    """A request for ``n`` answers, as OpenAI's chat completions write it.

    temperature: not checked, because a training run decides it; so is ``seed``.
    echo: fields of the request that the answer repeats, in protocols that require it.
    """

    messages: list[ChatMessage]
    tools: list[_Tool] = []
    tool_choice: Literal["auto", "none"] = "auto"
    model: str = ""
    max_tokens: int | None = Field(None, ge=1, strict=True)
    max_completion_tokens: int | None = Field(None, ge=1, strict=True)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = Field([], max_length=16)
    n: int = Field(1, ge=1, le=16, strict=True)
    logprobs: bool = False
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    temperature: Any = None
    seed: Any = None
    echo: Json = {}

    @classmethod
    def of(
        cls,
        options: Json,
        messages: Iterable[Located] | None = None,
        tools: Iterable[Located] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> ChatRequest:
        """The request in the JSON of a client; stops at the first error.

        options: the body, as OpenAI's chat completions write it.
        messages: in place of its messages, those of another protocol.
        tools: in place of its tools.
        names: the protocol's names of parameters, for errors.

        Raises: GatewayError naming the key.
        """
        if messages is None:
            messages = located(options, "messages")
        if tools is None:
            tools = located(options, "tools")
        context = {"values": [json_values.MAX_VALUES]}  # of all calls' arguments together
        plain = {
            **options,
            "messages": [_validated(ChatMessage, location, value, context) for location, value in messages],
            "tools": [_validated(_Tool, location, value, context) for location, value in tools],
        }
        try:
            request = cls.model_validate(plain)
        except ValidationError as error:
            raise _first_problem(error, names=names or {}) from None
        if not request.messages:
            raise GatewayError(400, "messages: must hold at least one message")
        if not request.conversation or request.conversation[-1]["role"] == "assistant":
            raise GatewayError(400, "messages: the last must come from the user or a tool, not from the model")
        return request

    @functools.cached_property
    def conversation(self) -> list[Message]:
        """The messages as chat templates take them: the system's first ones as one, then the others.

        A later message of the system is a user's: templates show the system's only at the beginning. It becomes one
        message with the user's messages next to it, because some templates require the roles to alternate.
        """
        leading = list(itertools.takewhile(lambda message: message.role in _SYSTEM, self.messages))
        system = "\n\n".join(message.content for message in leading)
        conversation = [{"role": "system", "content": system}] if system else []
        merging = False  # whether the last message shown takes the next text of the user
        for message in self.messages[len(leading) :]:
            is_system = message.role in _SYSTEM
            if is_system and not message.content:
                continue
            if (
                conversation
                and conversation[-1]["role"] == "user"
                and (is_system or (merging and message.role == "user"))
            ):
                conversation[-1] = {"role": "user", "content": f"{conversation[-1]['content']}\n\n{message.content}"}
                merging = True
                continue
            conversation.append({"role": "user", "content": message.content} if is_system else message.for_template)
            merging = is_system
        return conversation

    @functools.cached_property
    def digests(self) -> list[bytes]:
        """The :func:`digest` of each message of the conversation."""
        return [digest(message) for message in self.conversation]

    @functools.cached_property
    def functions(self) -> list[Json]:
        """The tools as chat templates take them; none if none may be called."""
        return [] if self.tool_choice == "none" else [tool.model_dump() for tool in self.tools]

    @functools.cached_property
    def observation(self) -> str:
        """The text of the messages after the last answer."""
        last_answer = max((i for i, message in enumerate(self.messages) if message.role == "assistant"), default=-1)
        return "\n\n".join(message.content for message in self.messages[last_answer + 1 :])


def _validated(model: type[Model], place: str, value: Json, context: Json) -> Model:
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        raise _first_problem(error, place) from None


def _first_problem(error: ValidationError, place: str = "", names: Mapping[str, str] | None = None) -> GatewayError:
    """The first problem, with its key as the client wrote it."""
    key, message, _ = problems(error)[0]
    parameter, dot, path = key.partition(".")
    if names:
        parameter = names.get(parameter, parameter)
    client_key = ".".join(filter(None, (place, f"{parameter}{dot}{path}")))
    advice = "; only text is supported" if key == "content" else ""
    return GatewayError(400, f"{sentence(client_key, message):.300}{advice}")


def objects(body: Json, key: str) -> list[Json]:
    """The objects listed at ``key``: at most ``MAX_TOOLS`` tools, ``MAX_MESSAGES`` of others. Raises: GatewayError."""
    limit = MAX_TOOLS if key == "tools" else MAX_MESSAGES
    value = body.get(key) or []
    if not isinstance(value, list):
        raise GatewayError(400, f"{key} must be a list of objects")
    if len(value) > limit:
        raise GatewayError(400, f"{key} must have at most {limit} items (got {len(value)})")
    if not all(isinstance(item, dict) for item in value):
        raise GatewayError(400, f"{key} must be a list of objects")
    return value


def located(body: Json, key: str) -> list[Located]:
    """As :func:`objects`, each with its place."""
    return [(f"{key}.{number}", item) for number, item in enumerate(objects(body, key))]


# Answers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """An answer.

    content: its text, without the calls.
    calls: tool calls as chat templates take them, with arguments as a JSON object.
    finish: ``stop``, ``length`` or ``tool_calls``.
    usage: tokens of the prompt and of the answer.
    logprobs: token and log-probability of each sampled token, if asked for.
    ids: of the sampled tokens, if a reward function asks for them.
    stop: the stop string that ended it, '' for another end.
    rejected: in place of an answer, why the request cannot be shown to the model; '' for an answer.
    status: of HTTP, for a rejected request.
    """

    content: str = ""
    calls: list[Json] = field(default_factory=list)
    finish: str = "stop"
    usage: Sequence[int] = (0, 0)
    logprobs: Sequence[tuple[str, float]] = ()
    ids: Sequence[int] = ()
    stop: str = ""
    rejected: str = ""
    status: int = 0

    @property
    def text(self) -> str:
        """The content and the calls, one per line: equal for equal answers."""
        calls = (json.dumps(call["function"], ensure_ascii=False) for call in self.calls)
        return "\n".join(filter(None, (self.content, *calls)))

    @property
    def has_text_part(self) -> bool:
        """Whether protocols with separate parts write the content: also an empty one, if there are no calls."""
        return bool(self.content) or not self.calls

    @property
    def calls_with_text_arguments(self) -> list[Json]:
        """The tool calls as OpenAI writes them, with arguments as text."""
        return [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in self.calls
        ]

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

    def cut(self, stop: Sequence[str]) -> Completion:
        """The answer up to the first of the ``stop`` strings in its content."""
        ends = [(self.content.index(mark), mark) for mark in stop if mark in self.content]
        if not ends:
            return self
        end, mark = min(ends)
        return replace(self, content=self.content[:end], calls=[], finish="stop", stop=mark)

    @property
    def message(self) -> Message:
        """The answer in a conversation."""
        calls = {"tool_calls": self.calls} if self.calls else {}
        return {"role": "assistant", "content": self.content, **calls}


def digest(message: Message) -> bytes:
    """Equal for messages with equal role, text and calls; ids of calls do not count."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    hasher = hashlib.sha256(json.dumps([message["role"], calls], sort_keys=True).encode())
    hasher.update(b"\0")  # JSON contains no such byte, so the text cannot be taken for a part of the calls
    # The text is not part of the JSON, which would take up to six times its memory.
    hasher.update(message["content"].encode(errors="surrogatepass"))
    return hasher.digest()


def events(typed_events: Sequence[tuple[str, Json]]) -> str:
    """Server-sent events, each with its type, as text."""
    return "".join(f"event: {event}\ndata: {json.dumps({'type': event, **data})}\n\n" for event, data in typed_events)
