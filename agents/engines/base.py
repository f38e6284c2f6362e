"""What samples tokens: the interface that every engine keeps, and its requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gagpo.envs.errors import InvalidArgument


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    temperature: >= 0; 0 takes the most probable token. Log-probabilities are those of the tempered distribution.
    max_tokens: most tokens of one response.
    top_p: nucleus mass in (0, 1]; below 1 the sampled distribution is not the trained one, so training refuses it.
    """

    temperature: float = 1.0
    max_tokens: int = 512
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise InvalidArgument(f"temperature must be >= 0, got {self.temperature}")
        if self.max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be >= 1, got {self.max_tokens}")
        if not 0 < self.top_p <= 1:
            raise InvalidArgument(f"top_p must lie in (0, 1], got {self.top_p}")


@dataclass(frozen=True)
class Request:
    """One response to sample.

    session: requests of one session usually extend each other's prompts, so an engine keeps its cache under this name.
    seed: the response is a function of weights, prompt, sampling and this number, not of what else is in the batch.
    temperature: in place of the sampling's, where it is not None.
    """

    session: int
    prompt_ids: np.ndarray
    seed: int
    temperature: float | None = None


@dataclass(frozen=True)
class Response:
    """ids: int32, the sampled tokens, the stop token included if one came; logprobs: float32, one per token."""

    ids: np.ndarray
    logprobs: np.ndarray
    stopped: bool


class Engine(Protocol):
    """Samples responses to batches of prompts."""

    tokenizer: Any
    max_length: int

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """One response per request, in order. A prompt must leave room for ``max_tokens`` within ``max_length``."""
        ...

    def release(self, session: int) -> None:
        """Forget a session's cache; unknown sessions are ignored."""
        ...

    def refresh(self) -> None:
        """The weights have changed: drop every cache and take the new ones."""
        ...


def longest_row(requests: Sequence[Request], sampling: Sampling, limit: int) -> int:
    """Tokens of the longest prompt with the longest response; ValueError when that is more than ``limit``."""
    longest = max(len(request.prompt_ids) for request in requests) + sampling.max_tokens
    if longest > limit:
        raise InvalidArgument(f"prompt and max_tokens need {longest} tokens, the model's limit is {limit}")
    return longest


def stop_tokens(tokenizer: Any, model: Any = None) -> list[int]:
    """The tokens that end a response: the tokenizer's end token, the generation config's and the chat template's."""
    stops = {tokenizer.eos_token_id}
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops.update(configured if isinstance(configured, list) else [configured])
    for name in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"):
        stops.add(tokenizer.get_added_vocab().get(name))
    return sorted(stop for stop in stops if stop is not None)
