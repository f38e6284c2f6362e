"""The client of one vLLM server: token ids in, token ids and log-probabilities out.

Every wait has a deadline, and answers have a size limit. Each answer names the weights that sampled it. Answers from
other weights are rejected, so servers that restarted or missed an update cannot affect training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.exchange import DeadlinePassed, ExchangeFailed, OversizedReply, Reply, exchange, open_http

TEMPERATURES = (0.01, 2.0)  # what vLLM accepts besides 0; it silently raises lower ones
CONTROL_BYTES = 1 << 20  # most bytes of an answer without tokens
ANSWER_BYTES = 1 << 16  # most bytes of an answer with tokens, in addition to those of its tokens
TOKEN_BYTES = 512  # most bytes per token: id, log-probability and one candidate
HIGHEST = 1e-3  # log-probability, since rounding may exceed 0
NO_LOGPROB = -9998.0  # vLLM reports lower values for missing log-probabilities and NaN


class ReplicaError(GagpoError):
    """A server failed; another one may succeed."""


class ReplicaUnreachable(ReplicaError):
    """The connection failed."""


class ReplicaTimeout(ReplicaUnreachable):
    """The server did not answer within the deadline."""


class MalformedAnswer(ReplicaError):
    """The answer does not follow the protocol."""


class StaleWeights(ReplicaError):
    """The answer was sampled with outdated weights."""


class RequestRefused(ReplicaError, ValueError):
    """The server rejects the request as invalid."""


@dataclass(frozen=True)
class Terms:
    """What all requests have in common.

    stops: tokens that end a response.
    vocabulary: number of tokens.
    version: name of the weights that must answer, and salt of the server's prefix cache.
    """

    stops: tuple[int, ...]
    vocabulary: int
    version: str


class _Part(BaseModel):
    """A part of an answer; numbers must be finite and not given as text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Token(_Part):
    token_id: int
    logprob: Annotated[float, Field(gt=NO_LOGPROB, le=HIGHEST)]


class _Logprobs(_Part):
    content: list[_Token]


class _Span(_Part):
    """Weights that sampled the tokens ``[start, end)``."""

    start: int
    end: int
    version: str


class _Choice(_Part):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: list[_Span] | None = None


class _Answer(_Part):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class Client:
    """The server at ``url``, for use in one event loop. deadline: seconds for a response, including queueing."""

    generating = "/inference/v1/generate"

    def __init__(self, url: str, deadline: float):
        self.url = url.rstrip("/")
        self.deadline = deadline
        self._http = open_http(proxies=False)

    async def generate(self, request: Request, sampling: Sampling, terms: Terms) -> Response:
        """Ask for one response. Raises: ReplicaError."""
        most = sampling.limit(request)
        limit = ANSWER_BYTES + TOKEN_BYTES * most
        answer = await self._ask("POST", self.generating, _question(request, sampling, terms), self.deadline, limit)
        return parse(answer, most, terms)

    async def healthy(self, deadline: float) -> None:
        """Raise ReplicaError unless the server reports that it is healthy."""
        await self._ask("GET", "/health", None, deadline, CONTROL_BYTES)

    async def order(self, path: str, body: Mapping[str, object] | None, deadline: float) -> None:
        """Make a call and ignore its answer: weight transfer, sleep and wake."""
        data = None if body is None else json.dumps(body).encode()
        await self._ask("POST", path, data, deadline, CONTROL_BYTES)

    async def close(self) -> None:
        """Close all connections; the server aborts what is under way."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: bytes | None, deadline: float, most: int) -> bytes:
        reply = await self._exchange(method, path, body, deadline, most)
        if reply.status == 200:
            return reply.body
        if reply.status in (400, 413, 422):
            raise RequestRefused(f"{self.url}{path} refuses the request ({reply.status}): {reply.excerpt}")
        if reply.status in (401, 403, 404, 405):
            raise ReplicaError(
                f"{self.url}{path} cannot be used ({reply.status}): {reply.excerpt}; start the server with "
                "`python -m gagpo.agents.engines.remote.server MODEL`, which enables what is needed"
            )
        raise ReplicaError(f"{self.url}{path} failed ({reply.status}): {reply.excerpt}")

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline: float, most: int) -> Reply:
        try:
            return await exchange(self._http, method, self.url + path, body, deadline=deadline, most=most)
        except DeadlinePassed as error:
            raise ReplicaTimeout(str(error)) from None
        except OversizedReply as error:
            raise MalformedAnswer(str(error)) from None
        except ExchangeFailed as error:
            raise ReplicaUnreachable(str(error)) from None


def temperature_of(request: Request, sampling: Sampling) -> float:
    """The temperature of a request. Raises: InvalidArgument for one that vLLM would change."""
    temperature = sampling.temperature_of(request)
    lowest, highest = TEMPERATURES
    if temperature and not lowest <= temperature <= highest:
        raise InvalidArgument(f"vLLM samples at temperature 0 or in [{lowest}, {highest}], got {temperature}")
    return temperature


def _spread(seed: int) -> int:
    """Hash a seed to 63 bits, since generators on a CPU use only the lowest 32."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def _question(request: Request, sampling: Sampling, terms: Terms) -> bytes:
    """The JSON body of a request for a response."""
    body = {
        "token_ids": request.prompt_ids.tolist(),
        "cache_salt": terms.version,
        "sampling_params": {
            "temperature": temperature_of(request, sampling),
            "max_tokens": sampling.limit(request),
            "seed": _spread(request.seed),
            "stop_token_ids": list(terms.stops),
            "ignore_eos": True,  # the stop tokens are ours
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
        },
    }
    return json.dumps(body).encode()


def parse(body: bytes, most: int, terms: Terms) -> Response:
    """The response in an answer, of at most ``most`` tokens.

    Raises: MalformedAnswer for an answer that contradicts itself or the request; StaleWeights for an answer from other
        weights than ``terms.version``.
    """
    try:
        (choice,) = _Answer.model_validate_json(body).choices
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise MalformedAnswer(f"malformed answer at {place}: {first['msg']}: {body[:60]!r}") from None
    ids, reason = choice.token_ids, choice.finish_reason
    if not 1 <= len(ids) <= most or not all(0 <= token < terms.vocabulary for token in ids):
        raise MalformedAnswer(f"the answer does not hold 1 to {most} tokens of a vocabulary of {terms.vocabulary}")
    if [one.token_id for one in choice.logprobs.content] != ids:
        raise MalformedAnswer(f"the answer does not hold one log-probability for each of its {len(ids)} tokens")
    stopped = reason == "stop" and ids[-1] in terms.stops
    if not stopped and not (reason == "length" and len(ids) == most):
        raise MalformedAnswer(f"it ended after {len(ids)} of {most} tokens, reason {reason!r:.40}")
    _require_version(choice.weight_versions, len(ids), terms.version)
    logprobs = np.asarray([one.logprob for one in choice.logprobs.content], np.float32)
    return Response(np.asarray(ids, np.int32), logprobs, stopped)


def _require_version(spans: Sequence[_Span] | None, count: int, version: str) -> None:
    """Raise unless all ``count`` tokens were sampled with the weights ``version``."""
    if spans is None:
        raise MalformedAnswer("the answer does not name its weights; vLLM 0.32 or later does")
    others = sorted({span.version for span in spans} - {version})
    if others:
        raise StaleWeights(f"it samples with weights {others[0]!r:.60} where {version!r} were sent")
    if [(span.start, span.end) for span in spans] != [(0, count)]:
        raise MalformedAnswer("the answer does not name the weights of all of its tokens")
