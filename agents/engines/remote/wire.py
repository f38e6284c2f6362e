"""What a vLLM server is asked and what it may answer: token ids in, token ids and log-probabilities out, never text.

Every answer names the weights that sampled each of its tokens. One from other weights than asked for is refused, so
that a server that was restarted behind our back, or missed an update, can never feed the trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


class RequestRefused(GagpoError, ValueError):
    """The server says that the request itself is wrong; no other would take it either."""


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
            "max_tokens": sampling.max_tokens,
            "seed": spread(request.seed),
            "stop_token_ids": list(terms.stops),
            "ignore_eos": True,  # the stop tokens are ours
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
        },
    }
    return json.dumps(body).encode()


def answer_limit(sampling: Sampling) -> int:
    """Most bytes that an honest answer takes."""
    return ANSWER_BYTES + TOKEN_BYTES * sampling.max_tokens


def parse(body: bytes, sampling: Sampling, terms: Terms) -> Response:
    """The response in an answer; raises :class:`MalformedAnswer`, or :class:`StaleWeights` for one of other weights."""
    choice = _choice(body)
    ids = _ids(choice, sampling, terms)
    logprobs = _logprobs(choice, ids)
    stopped = _stopped(choice, ids, sampling, terms)
    _require_version(choice.get("weight_versions"), len(ids), terms.version)
    return Response(np.asarray(ids, np.int32), np.asarray(logprobs, np.float32), stopped)


def _choice(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedAnswer(f"the answer is not JSON: {body[:60]!r}") from None
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise MalformedAnswer("the answer holds no single choice")
    choice: dict[str, object] = choices[0]
    return choice


def _ids(choice: dict[str, object], sampling: Sampling, terms: Terms) -> list[int]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not 1 <= len(ids) <= sampling.max_tokens:
        raise MalformedAnswer(f"the answer holds no list of 1 to {sampling.max_tokens} tokens")
    if not all(type(token) is int and 0 <= token < terms.vocabulary for token in ids):
        raise MalformedAnswer(f"the answer holds what is no token of a vocabulary of {terms.vocabulary}")
    return ids


def _logprobs(choice: dict[str, object], ids: Sequence[int]) -> list[float]:
    held = choice.get("logprobs")
    content = held.get("content") if isinstance(held, dict) else None
    if not isinstance(content, list) or len(content) != len(ids):
        raise MalformedAnswer(f"the answer does not hold {len(ids)} log-probabilities for its {len(ids)} tokens")
    values = []
    for token, entry in zip(ids, content, strict=True):  # a number of this very token; NaN lies nowhere
        found = entry if isinstance(entry, dict) and entry.get("token_id") == token else {}
        value = found.get("logprob", math.nan)
        if type(value) not in (int, float) or not NO_LOGPROB < value <= HIGHEST:
            raise MalformedAnswer(f"token {token} has no log-probability but {value!r:.40}")
        values.append(float(value))
    return values


def _stopped(choice: dict[str, object], ids: Sequence[int], sampling: Sampling, terms: Terms) -> bool:
    reason = choice.get("finish_reason")
    if reason == "stop" and ids[-1] in terms.stops:
        return True
    if reason == "length" and len(ids) == sampling.max_tokens:
        return False
    raise MalformedAnswer(f"the response ended after {len(ids)} of {sampling.max_tokens} tokens, reason {reason!r:.40}")


def _require_version(spans: object, count: int, version: str) -> None:
    """Every token must be of the weights called ``version``; vLLM lists them in spans ``[start, end)``."""
    if not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans):
        raise MalformedAnswer("the answer does not say which weights it is of; vLLM 0.32 or later does")
    others = sorted({str(span.get("version"))[:60] for span in spans} - {version})
    if others:
        raise StaleWeights(f"it samples with weights {others[0]!r} where {version!r} were sent")
    covered = [(span.get("start"), span.get("end")) for span in spans]
    if covered != [(0, count)]:
        raise MalformedAnswer("the answer does not say which weights all of its tokens are of")
