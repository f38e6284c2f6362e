"""The client of one vLLM server: token ids in, token ids and log-probabilities out, never text.

Every wait has a deadline, and no more of an answer is read than an honest one has. Each answer names the weights that
sampled it; an answer from other weights is refused, so a server that was restarted or missed an update never feeds the
trainer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.vllm_arguments import spread, temperature_of
from gagpo.base.errors import GagpoError
from gagpo.envs.remote.exchange import DeadlinePassed, ExchangeFailed, OversizedReply, Reply, exchange, open_http

CONTROL_BYTES = 1 << 20  # most bytes of an answer to anything but a request for tokens
ANSWER_BYTES = 1 << 16  # most bytes of an answer, its tokens aside
TOKEN_BYTES = 512  # most bytes of an answer for each token: id, log-probability and the candidate next to it
HIGHEST = 1e-3  # log-probability: rounding may lift one above 0
NO_LOGPROB = -9998.0  # what vLLM gives for a log-probability that is missing or not a number lies below

Order = tuple[str, Mapping[str, object] | None]
"""A call whose answer does not matter: its path and its JSON body."""


class ReplicaError(GagpoError):
    """A server did not answer, or not as it should; another server may do better."""


class ReplicaUnreachable(ReplicaError):
    """The connection failed."""


class ReplicaTimeout(ReplicaUnreachable):
    """Nothing came within the deadline."""


class MalformedAnswer(ReplicaError):
    """The answer does not follow the protocol."""


class StaleWeights(ReplicaError):
    """The answer was sampled with other weights than those sent last."""


class UnsuitableServer(ReplicaError):
    """The server lacks the calls that are needed, or does not allow them."""


class RequestRefused(GagpoError, ValueError):
    """The server says that the request itself is wrong."""


@dataclass(frozen=True)
class Terms:
    """What all requests have in common.

    stops: tokens that end a response.
    vocabulary: number of tokens; ids lie below it.
    version: name of the weights that must answer. It is also the salt of the server's prefix cache, so that no block of
        older weights is read.
    adapter: name of the LoRA adapter to use, None for the weights as they are.
    """

    stops: tuple[int, ...]
    vocabulary: int
    version: str
    adapter: str | None = None


class _Part(BaseModel):
    """A part of an answer, read strictly: no number from text, none that is not finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Token(_Part):
    token_id: int
    logprob: Annotated[float, Field(gt=NO_LOGPROB, le=HIGHEST)]


class _Logprobs(_Part):
    content: list[_Token]


class _Span(_Part):
    """Tokens ``[start, end)`` were sampled with the weights called ``version``."""

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
    """The server at ``url``; use it in one event loop.

    deadline: seconds that a response may take, including the time in the server's queue.
    """

    generating = "/inference/v1/generate"

    def __init__(self, url: str, deadline: float):
        self.url = url.rstrip("/")
        self.deadline = deadline
        self._http = open_http(proxies=False)  # proxies of the environment are not meant for these servers

    async def generate(self, request: Request, sampling: Sampling, terms: Terms) -> Response:
        """Ask for one response.

        Raises: ReplicaError for a failure of the server, RequestRefused for a request that it calls wrong.
        """
        most = sampling.limit(request)
        limit = ANSWER_BYTES + TOKEN_BYTES * most
        answer = await self._ask("POST", self.generating, _question(request, sampling, terms), self.deadline, limit)
        return parse(answer, most, terms)

    async def healthy(self, deadline: float) -> None:
        """Return when the server says that it is healthy, else raise :class:`ReplicaError`."""
        await self._ask("GET", "/health", None, deadline, CONTROL_BYTES)

    async def order(self, path: str, body: Mapping[str, object] | None, deadline: float) -> None:
        """Make a call whose answer does not matter: weight transfer, adapters, sleep and wake."""
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
            raise RequestRefused(f"{self.url}{path} refuses the request ({reply.status}): {reply.said}")
        if reply.status in (401, 403, 404, 405):
            raise UnsuitableServer(
                f"{self.url}{path} cannot be used ({reply.status}): {reply.said}; start the server with "
                "`python -m gagpo.agents.engines.remote.server MODEL`, which enables what is needed"
            )
        raise ReplicaError(f"{self.url}{path} failed ({reply.status}): {reply.said}")

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline: float, most: int) -> Reply:
        try:
            return await exchange(self._http, method, self.url + path, body, deadline=deadline, most=most)
        except DeadlinePassed as error:
            raise ReplicaTimeout(str(error)) from None
        except OversizedReply as error:
            raise MalformedAnswer(str(error)) from None
        except ExchangeFailed as error:
            raise ReplicaUnreachable(str(error)) from None


def _question(request: Request, sampling: Sampling, terms: Terms) -> bytes:
    """The JSON body of a request for tokens."""
    body = {
        "token_ids": request.prompt_ids.tolist(),
        "cache_salt": terms.version,
        "sampling_params": {
            "temperature": temperature_of(request, sampling),
            "max_tokens": sampling.limit(request),
            "seed": spread(request.seed),
            "stop_token_ids": list(terms.stops),
            "ignore_eos": True,  # the stop tokens are ours
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
        },
    }
    if terms.adapter is not None:
        body["model"] = terms.adapter
    return json.dumps(body).encode()


def parse(body: bytes, most: int, terms: Terms) -> Response:
    """The response of at most ``most`` tokens in an answer.

    Raises: MalformedAnswer where the parts of the answer contradict each other or the request; StaleWeights for an
        answer from other weights than ``terms.version``.
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
    """Raise unless all ``count`` tokens are from the weights called ``version``."""
    if spans is None:
        raise MalformedAnswer("the answer does not name its weights; vLLM 0.32 or later does")
    others = sorted({span.version for span in spans} - {version})
    if others:
        raise StaleWeights(f"it samples with weights {others[0]!r:.60} where {version!r} were sent")
    if [(span.start, span.end) for span in spans] != [(0, count)]:
        raise MalformedAnswer("the answer does not name the weights of all of its tokens")
