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
    """

    text: str
    reasoning: str
    usage: Usage
    cut: bool = False
    calls: Sequence[GivenCall] = ()


class _Details(BaseModel):
    cached_tokens: Count | None = None


class _Reported(BaseModel):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[GivenCall] | None = None


class _ChatChoice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_ChatChoice] = Field(min_length=1)
    usage: _Reported | None = None


def answer_limit(max_tokens: int) -> int:
    """Most bytes of a valid answer."""
    return ANSWER_BYTES + TOKEN_BYTES * max_tokens


def read_answer(body: bytes, messages: Messages) -> Answer:
    """The answer to ``messages`` in ``body``, with cost 0. Raises: ExchangeFailed."""
    try:
        found = _Completion.model_validate_json(body)
    except ValidationError as error:
        raise ExchangeFailed(f"malformed answer at {_first(error)}: {body[:100]!r}") from None
    choice = found.choices[0]
    text, reasoning = choice.message.content or "", choice.message.reasoning_content or choice.message.reasoning or ""
    calls = choice.message.tool_calls or []
    wrote = text + reasoning + "".join(call.function.arguments for call in calls)
    usage = _usage(found.usage) if found.usage else estimate(messages, wrote)
    return Answer(text, reasoning, usage, choice.finish_reason == "length", calls)


def estimate(messages: Messages, said: str) -> Usage:
    """Estimate the tokens of a question and its answer, at four characters a token."""
    return Usage(prompt=sum(len(one["content"]) for one in messages) // 4, completion=len(said) // 4)


def _usage(reported: _Reported) -> Usage:
    prompt = reported.prompt_tokens or 0
    cached = (reported.prompt_tokens_details or _Details()).cached_tokens or 0
    # More cached than read tokens would lower the cost.
    return Usage(prompt=prompt, completion=reported.completion_tokens or 0, cached=min(cached, prompt))


def _first(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its beginning'}: {first['msg']}"
