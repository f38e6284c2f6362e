"""What servers are asked and may answer: token ids in, token ids and log-probabilities out, never text.

Every answer names the weights that sampled it. One from other weights than asked for is refused, so that a server that
was restarted behind our back, or missed an update, can never feed the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from gagpo.agents.engines.base import Response
from gagpo.base.errors import GagpoError

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

    version: of the weights that must answer; where a server keeps its prefix cache over an update, also the cache's
    salt, so that no block of older weights is ever read. adapter: the name of the adapter that is to be used, None for
    the weights as they are.
    """

    stops: tuple[int, ...]
    vocabulary: int
    version: str
    adapter: str | None = None


def answer_limit(most: int) -> int:
    """Most bytes that an honest answer of ``most`` tokens takes."""
    return ANSWER_BYTES + TOKEN_BYTES * most


class Part(BaseModel):
    """A part of an answer, read strictly: no number from text, none that is not finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Span(Part):
    """Tokens ``[start, end)`` were sampled with the weights called ``version``."""

    start: int
    end: int
    version: str


AnswerT = TypeVar("AnswerT", bound=BaseModel)


def read(kind: type[AnswerT], body: bytes) -> AnswerT:
    """An answer of this form; :class:`MalformedAnswer` says where it is none."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise MalformedAnswer(f"the answer is none at {place}: {first['msg']}: {body[:60]!r}") from None


def checked_response(
    ids: Sequence[int], sampled: Sequence[tuple[int, float]], reason: str, most: int, terms: Terms
) -> Response:
    """The response that an answer holds.

    ids: its tokens. sampled: tokens and log-probabilities, each token once more. reason: why it ended, ``stop`` or
    ``length``. Raises :class:`MalformedAnswer` where these contradict each other, or what was asked.
    """
    if not 1 <= len(ids) <= most or not all(0 <= token < terms.vocabulary for token in ids):
        raise MalformedAnswer(f"the answer does not hold 1 to {most} tokens of a vocabulary of {terms.vocabulary}")
    if [token for token, _ in sampled] != list(ids):
        raise MalformedAnswer(f"the answer does not hold one log-probability for each of its {len(ids)} tokens")
    stopped = reason == "stop" and ids[-1] in terms.stops
    if not stopped and not (reason == "length" and len(ids) == most):
        raise MalformedAnswer(f"it ended after {len(ids)} of {most} tokens, reason {reason!r:.40}")
    logprobs = np.asarray([logprob for _, logprob in sampled], np.float32)
    return Response(np.asarray(ids, np.int32), logprobs, stopped)


def require_version(spans: Sequence[Span], count: int, terms: Terms) -> None:
    """:class:`StaleWeights` unless all ``count`` tokens are of the weights that were asked for."""
    others = sorted({span.version for span in spans} - {terms.version})
    if others:
        raise StaleWeights(f"it samples with weights {others[0]!r:.60} where {terms.version!r} were sent")
    if [(span.start, span.end) for span in spans] != [(0, count)]:
        raise MalformedAnswer("the answer does not say which weights all of its tokens are of")
