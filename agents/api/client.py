"""Talking to a server that speaks OpenAI's chat protocol: retries, rate limits, deadlines, tokens and their cost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from gagpo.agents.api.answer import Answer, MalformedReply, Messages, Usage, answer_limit, estimate, read_answer
from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.remote.exchange import ExchangeFailed, Reply, exchange, is_loopback, open_http

_PASSING = {408, 409, 425, 429}  # statuses below 500 that may be gone at the next try
_TOO_LONG = ("context_length", "context length", "maximum context", "too many tokens", "prompt is too long")


class ApiError(GagpoError):
    """The server refuses, or does not answer within all patience; what is finished is not lost."""


class ContextFull(ApiError):
    """The conversation no longer fits into the model's context."""


class LimitReached(ApiError):
    """The cost or the tokens that the user allowed are spent."""


class ApiClient:
    """Asks one model; safe for many threads. ``spent`` is everything so far; tests replace ``sleep`` and ``clock``.

    record: called with every change of ``spent`` before it is made: with a request before it is sent, and with what it
    cost when it is answered. What it raises ends the request.
    """

    def __init__(
        self,
        settings: ApiSettings,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.settings = settings
        self.spent = Usage()
        self.record: Callable[[Usage], object] = lambda change: None
        self._headers = {"authorization": f"Bearer {_key(settings)}"}
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self._limiter = RateLimiter(settings.requests_per_minute, settings.tokens_per_minute, clock)
        self._lock = threading.Lock()
        self._http = open_http(proxies=not is_loopback(settings.url))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="chat server", daemon=True).start()

    def ask(
        self,
        messages: Messages,
        temperature: float | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, JsonValue]] = (),
    ) -> Answer:
        """The answer to a conversation in which ``tools`` can be called; its usage is that of all tries.

        Raises :class:`ContextFull`, :class:`LimitReached`, or :class:`ApiError` when all tries have failed.
        """
        settings, fault = self.settings, _Fault("")
        fields: dict[str, JsonValue] = {settings.token_parameter: max_tokens, **settings.extra}
        if temperature is not None:
            fields["temperature"] = temperature
        if tools:
            fields["tools"] = [dict(tool) for tool in tools]
        question = json.dumps({"model": settings.model, "messages": list(messages), **fields}).encode()
        expected = estimate(messages, "").prompt + max_tokens
        usage = Usage()
        for attempt in range(settings.attempts):  # a try that may be mended is followed by a pause, for everybody
            if fault.words:
                self._limiter.hold(self._pause(fault.wait, attempt - 1))
            self._wait_for_turn(expected)
            self._spend(usage, Usage(requests=1, unanswered=1))
            try:
                reply = self._send(question, answer_limit(max_tokens))
                if reply.status != 200:
                    self._spend(usage, Usage(unanswered=-1))  # what is refused costs nothing
                    raise self._judge(reply)
                answer = read_answer(reply.body, messages)
            except _Fault as error:
                fault = error
            except (ExchangeFailed, MalformedReply) as error:
                fault = _Fault(str(error))
            else:
                cost = settings.cost(answer.usage)
                self._spend(usage, replace(answer.usage, unanswered=-1, cost=cost))
                return replace(answer, usage=usage)
        raise ApiError(f"{self._who} gave no answer in {settings.attempts} tries; the last time: {fault.words}")

    def close(self) -> None:
        """Wake whoever waits; every later question is refused. What is under way is answered, or has its deadline."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    @property
    def _who(self) -> str:
        return f"{self.settings.model} at {self.settings.url}"

    def _send(self, question: bytes, most: int) -> Reply:
        settings = self.settings
        with self._lock:  # none is sent after the last
            if self._stop.is_set():
                raise ApiError("the client is closed")
            call = exchange(
                self._http,
                "POST",
                settings.url,
                question,
                deadline=settings.timeout,
                most=most,
                headers=self._headers,
            )
            under_way = asyncio.run_coroutine_threadsafe(call, self._loop)
        return under_way.result()

    async def _end(self) -> None:
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        await self._http.aclose()
        self._loop.stop()

    def _spend(self, usage: Usage, change: Usage) -> None:
        with self._lock:
            self.record(change)
            self.spent.add(change)
        usage.add(change)

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

    def _judge(self, reply: Reply) -> _Fault:
        """Why a try was refused; raises where another try cannot help."""
        status, words = reply.status, f"status {reply.status}: {reply.said}"
        if status >= 500 or status in _PASSING:
            return _Fault(words, reply.headers.get("retry-after", ""))
        if status in (400, 413, 422) and any(mark in words.lower() for mark in _TOO_LONG):
            raise ContextFull(f"{self._who}: {words}")
        advice = {
            401: f"; is {self.settings.key_variable} right?",
            403: f"; may the key in {self.settings.key_variable} use this model?",
            404: "; is the model's name right, and does --base-url end in /v1?",
        }.get(status, "; is --base-url the server's own address?" if 300 <= status < 400 else "")
        raise ApiError(f"{self._who} refuses: {words}{advice}")

    def _pause(self, wanted: str, attempt: int) -> float:
        """Seconds until the next try: as the server says, else twice as long each time, with chance in it."""
        longest = self.settings.longest_wait
        try:
            return min(longest, max(0.0, float(wanted)))
        except ValueError:
            return min(longest, self.settings.backoff * 2.0**attempt) * (0.5 + random.random() / 2)


class _Fault(Exception):
    """A try that failed and may be mended. wait: what the server says of the next one."""

    def __init__(self, words: str, wait: str = ""):
        super().__init__(words)
        self.words, self.wait = words, wait


def _key(settings: ApiSettings) -> str:
    key = os.environ.get(settings.key_variable, "").strip() or ("none" if settings.base_url else "")
    if not key:
        raise InvalidArgument(f"set {settings.key_variable}, or name a server with --base-url")
    if not (key.isascii() and key.isprintable()):
        raise InvalidArgument(f"{settings.key_variable} holds characters that no key has")
    return key


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
