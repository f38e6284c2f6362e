"""What a vLLM server is asked and what it may answer: token ids in, token ids and log-probabilities out, never text.

Every answer names the weights that sampled each of its tokens. One from other weights than asked for is refused, so
that a server that was restarted behind our back, or missed an update, can never feed the trainer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.vllm_arguments import spread, temperature_of
from gagpo.envs.errors import GagpoError

GENERATE = "/inference/v1/generate"
TOKEN_BYTES = 512  # most bytes of an answer for each token: id, log-probability and the candidate beside it
ANSWER_BYTES = 1 << 16  # and for all the rest
HIGHEST = 1e-3  # log-probability: rounding may lift one above 0
NO_LOGPROB = -9998.0  # vLLM's sign for a log-probability that is missing or not a number lies below


class ReplicaError(GagpoError):
    """A server broke its promise, or did not answer; another may do better."""


class ReplicaUnreachable(ReplicaError):
    """The connection failed, or there was none to be had."""


class ReplicaTimeout(ReplicaUnreachable):
    """Nothing came within the deadline."""


class MalformedAnswer(ReplicaError):
    """What came is no answer to what was asked."""


class StaleWeights(ReplicaError):
    """The answer was sampled with other weights than those sent last."""


class UnsuitableServer(ReplicaError):
    """The server lacks the calls that are needed, or does not let us use them."""


class RequestRefused(GagpoError, ValueError):
    """The server says that the request itself is wrong."""


@dataclass(frozen=True)
class Terms:
    """What all requests have in common. stops: tokens that end a response. vocabulary: ids lie below.

    version: of the weights that must answer; also the salt of the prefix cache, so that no block of older weights is
    ever read.
    """

    stops: tuple[int, ...]
    vocabulary: int
    version: str


def question(request: Request, sampling: Sampling, terms: Terms) -> bytes:
    """The body of a request to :data:`GENERATE`."""
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
    return json.dumps(body).encode()


def answer_limit(most: int) -> int:
    """Most bytes that an honest answer of ``most`` tokens takes."""
    return ANSWER_BYTES + TOKEN_BYTES * most


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Token(_Part):
    token_id: int
    logprob: float = Field(gt=NO_LOGPROB, le=HIGHEST)


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


def parse(body: bytes, most: int, terms: Terms) -> Response:
    """The response of at most ``most`` tokens in an answer.

    Raises :class:`MalformedAnswer`, or :class:`StaleWeights` for one of other weights.
    """
    try:
        (choice,) = _Answer.model_validate_json(body).choices
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise MalformedAnswer(f"the answer is none at {place}: {first['msg']}: {body[:60]!r}") from None
    ids, content = choice.token_ids, choice.logprobs.content
    if not 1 <= len(ids) <= most or not all(0 <= token < terms.vocabulary for token in ids):
        raise MalformedAnswer(f"the answer does not hold 1 to {most} tokens of a vocabulary of {terms.vocabulary}")
    if [one.token_id for one in content] != ids:
        raise MalformedAnswer(f"the answer does not hold one log-probability for each of its {len(ids)} tokens")
    stopped = choice.finish_reason == "stop" and ids[-1] in terms.stops
    if not stopped and not (choice.finish_reason == "length" and len(ids) == most):
        raise MalformedAnswer(f"it ended after {len(ids)} of {most} tokens, reason {choice.finish_reason!r:.40}")
    spans = choice.weight_versions
    if spans is None:
        raise MalformedAnswer("the answer does not say which weights it is of; vLLM 0.32 or later does")
    others = sorted({span.version for span in spans} - {terms.version})
    if others:
        raise StaleWeights(f"it samples with weights {others[0]!r:.60} where {terms.version!r} were sent")
    if [(span.start, span.end) for span in spans] != [(0, len(ids))]:
        raise MalformedAnswer("the answer does not say which weights all of its tokens are of")
    logprobs = np.asarray([one.logprob for one in content], np.float32)
    return Response(np.asarray(ids, np.int32), logprobs, stopped)
