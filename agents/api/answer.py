"""Read the answers of a chat server and their usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from gagpo.base.exchange import ExchangeFailed

ANSWER_BYTES = 1 << 20  # most bytes of an answer without the model's text
TOKEN_BYTES = 512  # most bytes of a token in JSON
MOST_TOKENS = 10**9  # of any answer
FILTERED = ("content_filter", "content_policy_violation")  # codes of requests that a server's filter has stopped

Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Messages = Sequence[Mapping[str, Any]]


@dataclass
class Usage:
    """Requests, tokens and dollars.

    unanswered: requests whose answers were lost or malformed. Their cost is unknown: tokens and cost are lower bounds.
    prompt: tokens read.
    completion: tokens written.
    cached: the part of ``prompt`` that the server had cached.
    """

    requests: int = 0
    unanswered: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cost: float = 0.0

    def add(self, other: Usage) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class GivenCall(BaseModel):
    """A tool call as the server gives it. arguments: unparsed JSON."""

    class Function(BaseModel):
        name: str
        arguments: str = ""

    id: str = ""
    function: Function


@dataclass(frozen=True)
class Answer:
    """The answer of the model.

    reasoning: what the server gives apart from the text.
    cut: whether it ended at the token limit.
    calls: tool calls that the server has parsed out of the text.
    withheld: whether the server's filter or a refusal stands in its place. It is then no attempt at an action.
    """

    text: str
    reasoning: str
    usage: Usage
    cut: bool = False
    calls: Sequence[GivenCall] = ()
    withheld: bool = False


class ChatServerFailed(ExchangeFailed):
    """The server reports a failure of its own in an answer with status 200.

    usage: what it charges for the answer; None if it does not say.
    """

    def __init__(self, message: str, usage: Usage | None):
        super().__init__(message)
        self.usage = usage


class _Details(BaseModel):
    cached_tokens: Count | None = None


class _Reported(BaseModel):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _ContentPart(BaseModel):
    """A part of a message's content; each server uses some of the keys."""

    text: str | None = None
    refusal: str | None = None
    thinking: str | list[_ContentPart] | None = None


Content = str | list[_ContentPart | str] | None


class _Message(BaseModel):
    content: Content = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[GivenCall] | None = None


class _ChatChoice(BaseModel):
    message: _Message | None = None
    finish_reason: str | None = None
    error: Any = None


class _Completion(BaseModel):
    choices: list[_ChatChoice] = []
    usage: _Reported | None = None
    error: Any = None


def answer_limit(max_tokens: int) -> int:
    """Most bytes of a valid answer."""
    return ANSWER_BYTES + TOKEN_BYTES * max_tokens


def read_answer(body: bytes, messages: Messages) -> Answer:
    """The answer to ``messages`` in ``body``, with cost 0.

    Raises:
        ServerFailed: it reports a failure of the server.
        ExchangeFailed: it is malformed.
    """
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        raise ExchangeFailed(f"malformed answer at {_first(error)}: {body[:100]!r}") from None
    choice = next(iter(completion.choices), _ChatChoice())
    if fault := completion.error or choice.error:
        raise ChatServerFailed(f"the server reports an error: {_words(fault)}", _charged(completion))
    if choice.finish_reason == "error":
        raise ChatServerFailed("the server reports an error and no reason", _charged(completion))
    if choice.message is None:
        raise ExchangeFailed(f"malformed answer at choices: no message: {body[:100]!r}")
    message = choice.message
    text, thoughts, refused = _read_content(message.content)
    refusal = message.refusal or refused
    reasoning = message.reasoning_content or message.reasoning or thoughts
    calls = message.tool_calls or []
    wrote = text + refusal + reasoning + "".join(call.function.arguments for call in calls)
    usage = _charged(completion) or estimate(messages, wrote)
    if choice.finish_reason == "content_filter" or (refusal and not calls):
        return Answer(text or refusal, reasoning, usage, withheld=True)
    return Answer(text, reasoning, usage, choice.finish_reason == "length", calls)


def withheld_request(status: int, body: bytes) -> bool:
    """Whether an error with this body says that the server's filter has stopped the request, as Azure's does.

    >>> withheld_request(400, b'{"error": {"code": "content_filter", "message": "..."}}')
    True
    """
    try:
        fault = _Completion.model_validate_json(body).error
    except ValidationError:
        return False
    return status in (400, 403) and isinstance(fault, dict) and fault.get("code") in FILTERED


def estimate(messages: Messages, answer: str) -> Usage:
    """Estimate the tokens of a question and its answer, at four characters a token."""
    return Usage(prompt=sum(len(message["content"]) for message in messages) // 4, completion=len(answer) // 4)


def _read_content(content: Content) -> tuple[str, str, str]:
    """The text, the reasoning and the refusal of a message's content."""
    if content is None or isinstance(content, str):
        return content or "", "", ""
    segments = [_ContentPart(text=segment) if isinstance(segment, str) else segment for segment in content]
    thoughts = [segment.thinking or "" for segment in segments]
    reasoning = "".join(text if isinstance(text, str) else _read_content([*text])[0] for text in thoughts)
    return (
        "".join(segment.text or "" for segment in segments),
        reasoning,
        "".join(segment.refusal or "" for segment in segments),
    )


def _words(fault: object) -> str:
    """The message of an error in an answer, on one line."""
    if isinstance(fault, dict):
        fault = fault.get("message") or fault.get("code") or fault
    return " ".join(str(fault)[:300].split())


def _charged(completion: _Completion) -> Usage | None:
    """The usage that the server reports, if it does."""
    return _usage(completion.usage) if completion.usage else None


def _usage(reported: _Reported) -> Usage:
    prompt = reported.prompt_tokens or 0
    cached = (reported.prompt_tokens_details or _Details()).cached_tokens or 0
    # More cached than read tokens would lower the cost.
    return Usage(prompt=prompt, completion=reported.completion_tokens or 0, cached=min(cached, prompt))


def _first(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its beginning'}: {first['msg']}"
