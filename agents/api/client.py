"""The client of a chat server: the ``openai`` package with deadlines, size limits and cost accounting.

The package speaks the protocol and retries. Each attempt goes through a transport that records the request, and reads
the answer within its deadline and size.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import openai
from pydantic import JsonValue

from gagpo.agents.api.answer import (
    Answer,
    ChatServerFailed,
    Messages,
    Usage,
    answer_limit,
    read_answer,
    withheld_request,
)
from gagpo.agents.api.settings import ApiSettings
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.exchange import ExchangeFailed, Reply, Unreachable, exchange, is_loopback, open_http
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

_TOO_LONG = ("context_length", "context length", "maximum context", "too many tokens", "prompt is too long")
_ADVICE = {
    401: "is {key} right?",
    403: "may the key in {key} use this model?",
    404: "is the model's name right, and does --base-url end in /v1?",
}
_LIMITS = ("max_tokens", "max_completion_tokens")  # names for the limit on an answer's tokens; servers know one or both
_UNKNOWN = (
    "instead",
    "unsupported",
    "not supported",
    "unrecognized",
    "unknown",
    "not permitted",
    "unexpected",
    "extra",
)
_FOR_RETRIES = ("retry-after", "retry-after-ms", "x-should-retry")  # headers that openai reads


class ApiError(GagpoError):
    """The server rejects the request, or all attempts failed."""


class ContextFull(ApiError):
    """The conversation does not fit into the model's context."""


@dataclass
class _Question:
    """A question during its attempts.

    usage: of all attempts so far.
    """

    messages: Messages
    max_tokens: int
    usage: Usage = field(default_factory=Usage)
    answer: Answer | None = None


class _Stopped(openai.OpenAIError):
    """Ends all attempts of a question; openai does not retry after its own errors."""

    def __init__(self, error: ApiError):
        super().__init__(str(error))
        self.error = error


_question: ContextVar[_Question] = ContextVar("question")  # of the task; openai passes nothing on to the transport


class ApiClient:
    """Asks one model.

    All requests run in one event loop in another thread, from the first :meth:`submit` to :meth:`close`. The caller
    gets futures; nothing else waits for the thread.

    spent: total usage.
    record: called with every change of ``spent`` before it is made: before a request is sent, and when it is answered.
        Its exceptions end the request.
    """

    def __init__(self, settings: ApiSettings):
        self.settings = settings
        self.spent = Usage()
        self.record: Callable[[Usage], object] = lambda change: None
        self._lock = threading.Lock()
        self._closed = False
        self._reached = False  # by some attempt
        self._failing = False  # a warning was logged since the last answer
        # OpenAI's newer models refuse max_tokens, and other servers may not know its successor.
        self._limit = _LIMITS[0] if settings.base_url else _LIMITS[1]
        self._sending: set[asyncio.Task[Any] | None] = set()
        self._openai = openai.AsyncOpenAI(
            api_key=_key(settings),
            base_url=settings.url,
            max_retries=settings.attempts - 1,
            http_client=httpx2.AsyncClient(transport=_Transport(self.attempt, settings.url)),
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self,
        messages: Messages,
        temperature: float,
        max_tokens: int,
        tools: Sequence[Mapping[str, JsonValue]] = (),
        stop: Sequence[str] = (),
    ) -> Future[Answer]:
        """Ask for the answer to a conversation in which ``tools`` can be called; its usage is that of all attempts.

        stop: strings that end the answer, which leaves them out.

        The future fails with ContextFull, or with ApiError after the last attempt or at the limit on the cost.
        """
        fields: dict[str, object] = {"temperature": temperature}
        if tools:
            fields["tools"] = [dict(tool) for tool in tools]
        if stop:
            fields["stop"] = list(stop)
        question = _Question(messages, max_tokens)
        with self._lock:
            if self._closed:
                raise ApiError("the client is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="chat server", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(self._answer(question, fields), self._loop)

    async def _answer(self, question: _Question, fields: Mapping[str, object]) -> Answer:
        _question.set(question)
        model = f"{self.settings.model} at {self.settings.url}"
        limit = self._limit
        try:
            try:
                await self._create(question, fields, limit)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not _refuses_limit(error):
                    raise
                self._limit = _other(limit)
                await self._create(question, fields, _other(limit))
        except _Stopped as stopped:
            raise stopped.error from None
        except asyncio.CancelledError:  # by close
            raise ApiError("the client is closed") from None
        except openai.APIConnectionError as error:
            raise ApiError(self._exhausted(model, error.__cause__, question)) from None
        except openai.APIStatusError as error:
            if not withheld_request(error.status_code, error.response.content):
                raise self._refusal(model, error, question) from None
            question.answer = Answer("", "", Usage(), withheld=True)
        assert question.answer is not None
        return replace(question.answer, usage=question.usage)

    async def _create(self, question: _Question, fields: Mapping[str, object], limit: str) -> None:
        """Ask until the transport has set the question's answer. limit: how the server calls the limit on tokens."""
        create: Any = self._openai.chat.completions.with_raw_response.create
        body = {**fields, limit: question.max_tokens}
        await create(model=self.settings.model, messages=_encodable(question.messages), extra_body=body)

    def close(self) -> None:
        """Reject later questions and stop retries; requests that were sent are answered or reach their deadline."""
        with self._lock:
            if self._loop is not None and not self._closed:
                asyncio.run_coroutine_threadsafe(self._end(self._loop), self._loop)
            self._closed = True

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        # Requests that were sent cost money, so they run to their end; those that wait for a retry are cancelled.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks - self._sending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._openai.close()
        loop.stop()

    @staticmethod
    def _exhausted(model: str, reason: object, question: _Question) -> str:
        """The error after the last attempt; a server may forbid further ones before they are used up."""
        tries = question.usage.requests
        return f"{model} gave no answer in {tries} {'try' if tries == 1 else 'tries'}; the last time: {reason}"

    def _refusal(self, model: str, error: openai.APIStatusError, question: _Question) -> ApiError:
        status = error.status_code
        text = " ".join(error.response.text[:300].split()) or "no message"
        reason = f"status {status}: {text}"
        if status >= 500 or status in (408, 409, 429):
            return ApiError(self._exhausted(model, reason, question))
        if status in (400, 413, 422) and any(mark in reason.lower() for mark in _TOO_LONG):
            return ContextFull(f"{model}: {reason}")
        redirects = 300 <= status < 400
        advice = _ADVICE.get(status, "is --base-url the server's own address?" if redirects else "")
        advice = f"; {advice.format(key=self.settings.key_variable)}" if advice else ""
        return ApiError(f"{model} refuses: {reason}{advice}")

    # Called by the transport, in the event loop ----------------------------------------------------------------------

    async def attempt(self, http: httpx2.AsyncClient, request: httpx2.Request) -> Reply:
        """Send a request and record its cost. Raises: _Stopped if no more are sent; ExchangeFailed.

        A server that was never reached is given up at once. Other failures are retried, with one warning.
        """
        question = _question.get()
        settings = self.settings
        task = asyncio.current_task()
        if settings.limit_cost is not None and self.spent.cost >= settings.limit_cost:
            raise _Stopped(
                ApiError(f"${self.spent.cost:.2f} is spent, the limit is ${settings.limit_cost:.2f}", key="limit_cost")
            )
        if self._closed:
            raise _Stopped(ApiError("the client is closed"))
        self._sending.add(task)
        try:
            self._spend(question, Usage(requests=1, unanswered=1))
            reply = await exchange(
                http,
                request.method,
                str(request.url),
                request.content,
                deadline=settings.timeout,
                most=answer_limit(question.max_tokens),
                headers={"authorization": request.headers["authorization"]},
            )
            self._reached = True
            self._read(question, reply)
        except ExchangeFailed as error:
            if isinstance(error, Unreachable) and not self._reached:
                raise _Stopped(ApiError(error, advice="is it running, and is --base-url right?")) from None
            self._warn(str(error))
            raise
        finally:
            self._sending.discard(task)
        if reply.status < 500 and reply.status not in (408, 409, 429):
            self._failing = False
        elif reply.headers.get("x-should-retry") != "false":
            self._warn(f"{settings.url}: status {reply.status}: {reply.excerpt}")
        return reply

    def _warn(self, reason: str) -> None:
        """Log the first failure of an outage."""
        if not self._failing and self.settings.attempts > 1:
            self._failing = True
            LOG.warning("%s; trying again, %d times at most", ascii_only(reason), self.settings.attempts - 1)

    def _read(self, question: _Question, reply: Reply) -> None:
        if reply.status != 200:
            self._spend(question, Usage(unanswered=-1))  # a refusal costs nothing
            if 200 < reply.status < 300:  # openai would take it for an answer
                raise ExchangeFailed(f"status {reply.status} is not an answer")
            return
        try:
            question.answer = answer = read_answer(reply.body, question.messages)
        except ChatServerFailed as failed:
            if failed.usage is not None:
                self._spend(question, replace(failed.usage, unanswered=-1, cost=self.settings.cost(failed.usage)))
            raise
        self._spend(question, replace(answer.usage, unanswered=-1, cost=self.settings.cost(answer.usage)))

    def _spend(self, question: _Question, change: Usage) -> None:
        with self._lock:
            self.record(change)
            self.spent.add(change)
        question.usage.add(change)


class _Transport(httpx2.AsyncBaseTransport):
    """Gives openai the outcome of an attempt as its own transport would."""

    def __init__(self, attempt: Callable[[httpx2.AsyncClient, httpx2.Request], Awaitable[Reply]], url: str):
        self._attempt = attempt
        self._http = open_http(proxies=not is_loopback(url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            reply = await self._attempt(self._http, request)
        except ExchangeFailed as error:
            raise httpx2.ReadError(str(error)) from None
        headers = {name: reply.headers[name] for name in _FOR_RETRIES if name in reply.headers}
        return httpx2.Response(reply.status, headers=headers, content=reply.body)

    async def aclose(self) -> None:
        await self._http.aclose()


def _refuses_limit(error: openai.APIStatusError) -> bool:
    """Whether a request is refused for the name of its limit on tokens."""
    text = error.response.text[:2000].lower()
    return any(name in text for name in _LIMITS) and any(mark in text for mark in _UNKNOWN)


def _other(limit: str) -> str:
    return next(name for name in _LIMITS if name != limit)


def _encodable(messages: Messages) -> list[dict[str, Any]]:
    """The messages without half surrogate pairs, which UTF-8 cannot encode."""
    encodable: list[dict[str, Any]] = json.loads(
        json.dumps(list(messages), ensure_ascii=False).encode(errors="replace")
    )
    return encodable


def _key(settings: ApiSettings) -> str:
    key = os.environ.get(settings.key_variable, "").strip() or ("none" if settings.base_url else "")
    if not key:
        raise InvalidArgument(
            f"set {settings.key_variable}, or name a server with --base-url", key=settings.key_variable
        )
    if not (key.isascii() and key.isprintable()):
        raise InvalidArgument(f"{settings.key_variable} holds characters that no key has", key=settings.key_variable)
    return key
