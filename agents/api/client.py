"""Talking to a server that speaks OpenAI's chat protocol: retries, rate limits, deadlines, tokens and their cost."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gagpo.envs.errors import GagpoError, InvalidArgument, MissingPackage

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # statuses that may be gone at the next try
_TOO_LONG = ("context_length", "context length", "maximum context", "too many tokens", "prompt is too long")


class ApiError(GagpoError):
    """The server refuses, or does not answer within all patience; what is finished is not lost."""


class ContextFull(ApiError):
    """The conversation no longer fits into the model's context."""


class LimitReached(ApiError):
    """The cost or the tokens that the user allowed are spent."""


@dataclass(frozen=True)
class ApiSettings:
    """Who is asked, how patiently, and at what price.

    model: as the server calls it. base_url: of a compatible server; None for OpenAI's own. key_variable: environment
    variable that holds the key (a local server needs none).
    timeout: seconds for one answer. attempts: how often one request is tried. backoff, longest_wait: seconds of the
    first wait and of the longest one; a wait doubles each time, with chance in it, unless the server names one.
    requests_per_minute, tokens_per_minute: what the server allows; None for no limit of ours.
    input_price, cached_price, output_price: dollars per million tokens.
    limit_cost, limit_tokens: dollars, and tokens in and out together, after which nothing more is asked.
    token_parameter: ``max_tokens``, or ``max_completion_tokens`` for models that refuse the former.
    extra: further fields of every request.
    """

    model: str
    base_url: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    attempts: int = 8
    backoff: float = 1.0
    longest_wait: float = 60.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    input_price: float = 0.0
    cached_price: float | None = None
    output_price: float = 0.0
    limit_cost: float | None = None
    limit_tokens: int | None = None
    token_parameter: str = "max_tokens"
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidArgument("name the model, as in openai:MODEL")
        if self.attempts < 1 or self.timeout <= 0 or self.backoff < 0:
            raise InvalidArgument("attempts and timeout must be positive and backoff must not be negative")
        if self.limit_cost is not None and not (self.input_price or self.output_price):
            raise InvalidArgument("a limit on the cost needs prices: give --price-in and --price-out")


@dataclass
class Usage:
    """Tokens and dollars. ``cached`` is the part of ``prompt`` that the server had at hand, ``reasoning`` the part of
    ``completion`` that is not in the answer; ``estimated`` counts answers whose server reported no tokens."""

    requests: int = 0
    retries: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: int = 0
    cost: float = 0.0

    def add(self, other: Usage) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True)
class Answer:
    """What the model said. reasoning: what the server gives apart from the text. cut: it ended at the token limit."""

    text: str
    reasoning: str
    usage: Usage
    cut: bool = False


class ApiClient:
    """Asks one model; safe for many threads. ``spent`` is everything so far; tests replace ``sleep`` and ``clock``."""

    def __init__(
        self,
        settings: ApiSettings,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        try:
            import openai
        except ImportError:
            raise MissingPackage("asking a server needs the package openai; install the extra api") from None
        key = os.environ.get(settings.key_variable) or ("none" if settings.base_url else None)
        if key is None:
            raise InvalidArgument(f"set {settings.key_variable}, or name a server with --base-url")
        self.settings = settings
        self.spent = Usage()
        self._openai = openai
        self._client = openai.OpenAI(api_key=key, base_url=settings.base_url, timeout=settings.timeout, max_retries=0)
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self._clock = clock
        self._limiter = RateLimiter(settings.requests_per_minute, settings.tokens_per_minute, clock)
        self._lock = threading.Lock()

    def ask(self, messages: Sequence[Mapping[str, str]], temperature: float | None, max_tokens: int) -> Answer:
        """The answer to a conversation.

        Raises :class:`ContextFull`, :class:`LimitReached`, or :class:`ApiError` when all tries have failed.
        """
        settings = self.settings
        fields: dict[str, JsonValue] = {settings.token_parameter: max_tokens, **settings.extra}
        if temperature is not None:
            fields["temperature"] = temperature
        expected = sum(len(one["content"]) for one in messages) // 4 + max_tokens
        create: Callable[..., ChatCompletion] = self._client.chat.completions.create
        fault = ""
        for attempt in range(settings.attempts):  # a try that may be mended is followed by a pause, for everybody
            self._wait_for_turn(expected)
            try:
                reply = create(model=settings.model, messages=list(messages), **fields)
                answer = self._read(reply, messages, attempt)
            except (self._openai.APIConnectionError, self._openai.APIStatusError, _MalformedReply) as error:
                fault = self._judge(error)
                if attempt + 1 < settings.attempts:
                    self._limiter.hold(self._pause(error, attempt))
            else:
                with self._lock:
                    self.spent.add(answer.usage)
                return answer
        with self._lock:
            self.spent.retries += settings.attempts
        raise ApiError(f"{self._who} gave no answer in {settings.attempts} tries; the last time: {fault}")

    def close(self) -> None:
        """Wake whoever waits; every later question is refused."""
        self._stop.set()
        self._client.close()

    @property
    def _who(self) -> str:
        return f"{self.settings.model} at {self.settings.base_url or 'api.openai.com'}"

    def _wait_for_turn(self, tokens: int) -> None:
        while True:  # the client may be closed, or a limit reached, while one waits
            if self._stop.is_set():
                raise ApiError("the client is closed")
            self._check_limits()
            pause = self._limiter.enter(tokens)
            if not pause:
                return
            self._sleep(pause)

    def _check_limits(self) -> None:
        settings, spent = self.settings, self.spent
        if settings.limit_tokens is not None and spent.tokens >= settings.limit_tokens:
            raise LimitReached(f"{spent.tokens:,} tokens are spent, the limit is {settings.limit_tokens:,}")
        if settings.limit_cost is not None and spent.cost >= settings.limit_cost:
            raise LimitReached(f"${spent.cost:.2f} is spent, the limit is ${settings.limit_cost:.2f}")

    def _judge(self, error: Exception) -> str:
        """Why a try failed, in a line; raises where another try cannot help."""
        text = " ".join(str(error).split())[:300]
        status = getattr(error, "status_code", None)
        if status is None or status in _PASSING:
            return text or type(error).__name__
        if status in (400, 413, 422) and any(mark in text.lower() for mark in _TOO_LONG):
            raise ContextFull(f"{self._who}: {text}")
        advice = {
            401: f"; is {self.settings.key_variable} right?",
            403: f"; may the key in {self.settings.key_variable} use this model?",
            404: "; is the model's name right, and does --base-url end in /v1?",
        }.get(status, "")
        raise ApiError(f"{self._who} refuses: {text}{advice}")

    def _pause(self, error: Exception, attempt: int) -> float:
        """Seconds until the next try: as the server says, else twice as long each time, with chance in it."""
        longest = self.settings.longest_wait
        headers = getattr(getattr(error, "response", None), "headers", {})
        try:
            return min(longest, max(0.0, float(headers.get("retry-after", ""))))
        except ValueError:
            return min(longest, self.settings.backoff * 2.0**attempt) * (0.5 + random.random() / 2)

    def _read(self, reply: ChatCompletion, messages: Sequence[Mapping[str, str]], retries: int) -> Answer:
        try:
            choice = reply.choices[0]
            message, cut = choice.message, getattr(choice, "finish_reason", None) == "length"
            text = message.content or ""
            extra = getattr(message, "model_extra", None) or {}
            reasoning = extra.get("reasoning_content") or extra.get("reasoning") or ""
        except (AttributeError, IndexError, TypeError, KeyError):
            raise _MalformedReply(f"the answer holds no message: {str(reply)[:200]}") from None
        if not isinstance(text, str) or not isinstance(reasoning, str):
            raise _MalformedReply(f"the answer's content is no text: {str(reply)[:200]}")
        usage = self._usage(getattr(reply, "usage", None), messages, text + reasoning, retries)
        return Answer(text, reasoning, usage, cut)

    def _usage(
        self, reported: CompletionUsage | None, messages: Sequence[Mapping[str, str]], said: str, retries: int
    ) -> Usage:
        usage = Usage(requests=1, retries=retries)
        if reported is None:
            usage.estimated = 1
            usage.prompt = sum(len(one["content"]) for one in messages) // 4
            usage.completion = len(said) // 4
        else:
            usage.prompt, usage.completion = reported.prompt_tokens or 0, reported.completion_tokens or 0
            usage.cached = getattr(getattr(reported, "prompt_tokens_details", None), "cached_tokens", 0) or 0
            usage.reasoning = getattr(getattr(reported, "completion_tokens_details", None), "reasoning_tokens", 0) or 0
        price = self.settings
        cached = price.input_price if price.cached_price is None else price.cached_price
        fresh = usage.prompt - usage.cached
        usage.cost = (fresh * price.input_price + usage.cached * cached + usage.completion * price.output_price) / 1e6
        return usage


class _MalformedReply(Exception):
    """The server answered something else than the protocol has; worth another try."""


class RateLimiter:
    """Lets at most so many requests and tokens through in any minute, and nobody while the server asks for a pause."""

    def __init__(self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic):
        self._requests, self._tokens, self._clock = requests, tokens, clock
        self._entered: deque[tuple[float, int]] = deque()
        self._closed_until = -float("inf")
        self._lock = threading.Lock()

    def hold(self, seconds: float) -> None:
        """Let nobody through for ``seconds``: whoever comes now would only be refused too."""
        with self._lock:
            self._closed_until = max(self._closed_until, self._clock() + seconds)

    def enter(self, tokens: int) -> float:
        """0 when the request may go now (it is counted then), else the seconds after which to ask again."""
        with self._lock:
            now = self._clock()
            if now < self._closed_until:
                return self._closed_until - now
            while self._entered and self._entered[0][0] <= now - 60:
                self._entered.popleft()
            used = sum(count for _, count in self._entered)
            full = self._requests is not None and len(self._entered) >= self._requests
            full |= self._tokens is not None and used + tokens > self._tokens
            if full and self._entered:  # a single request that is larger than the limit goes alone
                return max(0.001, self._entered[0][0] + 60 - now)
            self._entered.append((now, tokens))
            return 0.0
