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
CONTROL_BYTES = 1 << 20  # maximum bytes of an answer without tokens
ANSWER_BYTES = 1 << 16  # maximum bytes of an answer with tokens, in addition to those of its tokens
TOKEN_BYTES = 512  # maximum bytes per token: id, log-probability and one candidate
MAX_LOGPROB = 1e-3  # rounding may exceed 0
NO_LOGPROB = -9998.0  # vLLM reports -9999 where a log-probability is missing or NaN


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


class RequestRejected(ReplicaError, ValueError):
    """The server rejects the request as invalid."""


@dataclass(frozen=True)
class ServedModel:
    """The model that answers all requests.

    stops: tokens that end a response.
    vocab_size: number of tokens.
    version: name of the weights that must answer, and salt of the server's prefix cache, so that keys and values of
        older weights are never used.
    """

    stops: tuple[int, ...]
    vocab_size: int
    version: str


class _AnswerPart(BaseModel):
    """Part of an answer; numbers must be finite and not given as text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Token(_AnswerPart):
    token_id: int
    logprob: Annotated[float, Field(gt=NO_LOGPROB, le=MAX_LOGPROB)]


class _Logprobs(_AnswerPart):
    content: list[_Token]


class _Span(_AnswerPart):
    """Weights that sampled the tokens ``[start, end)``."""

    start: int
    end: int
    version: str


class _Choice(_AnswerPart):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: list[_Span] | None = None


class _SampledAnswer(_AnswerPart):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class Client:
    """The server at ``url``, for use in one event loop.

    deadline: seconds for a response, including queueing.
    adapter: name of the LoRA adapter to sample with; None for the server's weights alone.
    hangs: whether its workers may wait for weights that no longer come.
    """

    generating = "/inference/v1/generate"

    def __init__(self, url: str, deadline: float):
        self.url = url.rstrip("/")
        self.deadline = deadline
        self.adapter: str | None = None
        self.hangs = False
        self._http = open_http(proxies=False)

    async def generate(self, request: Request, sampling: Sampling, model: ServedModel) -> Response:
        """Ask for one response. Raises: ReplicaError."""
        max_tokens = sampling.limit(request)
        body = _request_body(request, sampling, model, self.adapter)
        max_bytes = ANSWER_BYTES + TOKEN_BYTES * max_tokens
        answer = await self._send("POST", self.generating, body, self.deadline, max_bytes)
        return parse(answer, max_tokens, model)

    async def healthy(self, deadline: float) -> None:
        """Raise ReplicaError unless the server reports that it is healthy."""
        await self._send("GET", "/health", None, deadline, CONTROL_BYTES)

    async def post(self, path: str, body: Mapping[str, object] | None, deadline: float) -> None:
        """Make a call and ignore its answer: weight transfer, sleep and wake."""
        data = None if body is None else json.dumps(body).encode()
        await self._send("POST", path, data, deadline, CONTROL_BYTES)

    async def get(self, path: str, deadline: float) -> bytes:
        """The answer to a GET."""
        return await self._send("GET", path, None, deadline, CONTROL_BYTES)

    async def close(self) -> None:
        """Close all connections; the server aborts what is under way."""
        await self._http.aclose()

    async def _send(self, method: str, path: str, body: bytes | None, deadline: float, max_bytes: int) -> bytes:
        reply = await self._exchange(method, path, body, deadline, max_bytes)
        if reply.status == 200:
            return reply.body
        if reply.status in (400, 413, 422):
            raise RequestRejected(f"rejects the request ({reply.status}): {reply.excerpt}", where=f"{self.url}{path}")
        if reply.status in (401, 403, 404, 405):
            raise ReplicaError(
                f"cannot be used ({reply.status}): {reply.excerpt}",
                where=f"{self.url}{path}",
                advice=(
                    "start the server with "
                    "`python -m gagpo.agents.engines.remote.server MODEL`, which enables what is needed"
                ),
            )
        raise ReplicaError(f"failed ({reply.status}): {reply.excerpt}", where=f"{self.url}{path}")

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline: float, max_bytes: int) -> Reply:
        try:
            return await exchange(self._http, method, self.url + path, body, deadline=deadline, most=max_bytes)
        except DeadlinePassed as error:
            raise ReplicaTimeout(error) from None
        except OversizedReply as error:
            raise MalformedAnswer(error) from None
        except ExchangeFailed as error:
            raise ReplicaUnreachable(error) from None


def temperature_of(request: Request, sampling: Sampling) -> float:
    """The temperature of a request. Raises: InvalidArgument for one that vLLM would change."""
    temperature = sampling.temperature_of(request)
    lowest, highest = TEMPERATURES
    if temperature and not lowest <= temperature <= highest:
        raise InvalidArgument(
            f"vLLM samples at temperature 0 or in [{lowest}, {highest}], got {temperature}", key="temperature"
        )
    return temperature


def _hashed(seed: int) -> int:
    """Hash a seed to 63 bits: a generator on a CPU uses only the lowest 32, in which many of our seeds agree."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def _request_body(request: Request, sampling: Sampling, model: ServedModel, adapter: str | None) -> bytes:
    """The JSON body of a request for a response: token ids in both directions, so that nothing is encoded twice."""
    body: dict[str, object] = {
        "token_ids": request.prompt_ids.tolist(),
        "cache_salt": model.version,
        "sampling_params": {
            "temperature": temperature_of(request, sampling),
            "max_tokens": sampling.limit(request),
            "seed": _hashed(request.seed),
            "stop_token_ids": list(model.stops),
            "ignore_eos": True,  # the stop tokens are ours
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
        },
    }
    if adapter is not None:
        body["model"] = adapter
    return json.dumps(body).encode()


def parse(body: bytes, max_tokens: int, model: ServedModel) -> Response:
    """The response in an answer, of at most ``max_tokens`` tokens.

    Raises: MalformedAnswer for an answer that contradicts itself or the request; StaleWeights for an answer from other
        weights than ``model.version``.
    """
    try:
        (choice,) = _SampledAnswer.model_validate_json(body).choices
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "its beginning"
        raise MalformedAnswer(f"malformed answer at {key}: {first['msg']}: {body[:60]!r}") from None
    ids = choice.token_ids
    reason = choice.finish_reason
    if not 1 <= len(ids) <= max_tokens or not all(0 <= token < model.vocab_size for token in ids):
        raise MalformedAnswer(
            f"the answer does not contain 1 to {max_tokens} tokens of a vocabulary of {model.vocab_size}"
        )
    if [token.token_id for token in choice.logprobs.content] != ids:
        raise MalformedAnswer(f"the answer does not contain one log-probability for each of its {len(ids)} tokens")
    stopped = reason == "stop" and ids[-1] in model.stops
    if not stopped and not (reason == "length" and len(ids) == max_tokens):
        raise MalformedAnswer(f"it ended after {len(ids)} of {max_tokens} tokens, reason {reason!r:.40}")
    _require_version(choice.weight_versions, len(ids), model.version)
    logprobs = np.asarray([token.logprob for token in choice.logprobs.content], np.float32)
    return Response(np.asarray(ids, np.int32), logprobs, stopped)


def _require_version(spans: Sequence[_Span] | None, count: int, version: str) -> None:
    """Raise unless all ``count`` tokens were sampled with the weights ``version``."""
    if spans is None:
        raise MalformedAnswer("the answer does not name its weights", advice="vLLM 0.32 or later does")
    other_versions = sorted({span.version for span in spans} - {version})
    if other_versions:
        raise StaleWeights(f"it samples with weights {other_versions[0]!r:.60} where {version!r} were sent")
    if [(span.start, span.end) for span in spans] != [(0, count)]:
        raise MalformedAnswer("the answer does not name the weights of all of its tokens")
