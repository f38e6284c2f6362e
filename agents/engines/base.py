"""The interface of engines, which sample tokens.

Engines take token ids and not text, because the trainer must train on exactly what was sampled. The calls to submit and
to collect are separate, so that one thread can keep an engine busy while environments step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gagpo.agents import chat_template
from gagpo.base.defaults import MAX_TOKENS
from gagpo.base.errors import InvalidArgument
from gagpo.model.dtypes import name_of, require_known
from gagpo.model.shape import config_of

if TYPE_CHECKING:  # an agent behind a chat server imports neither
    import torch
    from transformers import PreTrainedConfig

    from gagpo.model.weights import NamedTensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled.

    temperature: >= 0; 0 takes the most probable token. Log-probabilities are those of the tempered distribution.
    max_tokens: maximum tokens of one response.
    """

    temperature: float = 1.0
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise InvalidArgument(f"temperature must be at least 0 (got {self.temperature})", key="temperature")
        if self.max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1 (got {self.max_tokens})", key="max_tokens")

    def temperature_of(self, request: Request) -> float:
        """The temperature of the response to ``request``."""
        return self.temperature if request.temperature is None else request.temperature

    def limit(self, request: Request) -> int:
        """Maximum tokens of the response to ``request``."""
        return self.max_tokens if request.max_tokens is None else request.max_tokens


@dataclass(frozen=True)
class Request:
    """One response to sample.

    session: key of the engine's cache; prompts of one session usually extend each other.
    prompt_ids: int32, the tokens to read.
    seed: weights, prompt, sampling and seed determine the response, whatever else is in the batch.
    temperature: overrides the sampling's unless None.
    max_tokens: overrides the sampling's unless None.
    stop: strings that end the response with the token that completes one, in engines that have ``takes_stop``.
    """

    session: int
    prompt_ids: np.ndarray
    seed: int
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Response:
    """A sampled response.

    ids: int32, including the stop token if one was sampled.
    logprobs: float32, one per token.
    stopped: whether a stop token or a stop string ended it.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    stopped: bool


Finished = tuple[Request, Response]


class Engine(Protocol):
    """Samples responses to prompts: in this process, in another, or on another machine.

    tokenizer: transformers' tokenizer of the model.
    max_length: maximum tokens of a prompt and its response.
    dtype: what is sampled in, by name.
    shares_weights: whether it samples from the trainer's own module in the trainer's precision, so that
        log-probabilities are those of the trainer's forward pass.
    """

    tokenizer: Any
    max_length: int
    dtype: str
    shares_weights: bool

    def start(self) -> None:
        """Start the processes and threads of the engine, if it has any; a second call does nothing.

        Nothing is sampled before. With several ranks all call it together.
        """

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """One response per request, in order. A prompt must leave room for ``max_tokens`` within ``max_length``."""

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests, in addition to those under way."""

    def collect(self, timeout: float | None = None) -> list[Finished]:
        """Wait for at least one finished response; ``[]`` if none is under way.

        timeout: maximum seconds to work or wait, None for no limit. With 0 an engine in this process advances its
            responses by one token.
        """

    def release(self, session: int) -> None:
        """Drop a session's cache and its request under way; unknown sessions are ignored."""

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Take new weights, each parameter once by its name, and drop all caches of the old ones.

        Raises: WeightsError for unknown or missing names and for other shapes.
        """

    def sleep(self) -> None:
        """Free the memory of caches and of weights that are not the trainer's; nothing may be under way."""

    def wake(self) -> None:
        """Allocate the memory again; an engine with separate weights rejects requests until :meth:`load_weights`."""

    def close(self) -> None:
        """End everything that runs for the engine; may be called twice."""


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """Start ``engine``, and close it at the end of the context."""
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


def require_stop(engine: Engine, stop: Sequence[str]) -> None:
    """Raise InvalidArgument for stop strings that ``engine`` cannot end a response at, to the token."""
    if stop and not getattr(engine, "takes_stop", False):
        raise InvalidArgument(
            (
                f"context.prompt.stop: {type(engine).__name__} samples token ids and cannot stop at the "
                f"string {stop[0]!r:.80}"
            ),
            key="context.prompt.stop",
            advice="remove stop from the prompt, or set engine=transformers",
        )


def engine_measures(engine: Engine) -> dict[str, float]:
    """Metrics of an iteration from the engine's method ``measures``, if it has one."""
    measures: Callable[[], dict[str, float]] | None = getattr(engine, "measures", None)
    return measures() if measures else {}


class ModelEngine(Engine):
    """Base of engines that sample from a model of this process or from copies of it."""

    shares_weights = False

    def __init__(self, model: torch.nn.Module, tokenizer: Any, max_length: int | None, dtype: str | None):
        weight = next(model.parameters())
        self.model = model
        self.tokenizer = tokenizer
        self.device = weight.device
        self.dtype = dtype or name_of(weight.dtype)
        if dtype:
            require_known(dtype)
        self.max_length = context_limit(config_of(model), max_length)
        self.stops = stop_tokens(tokenizer, model)
        self._ready = True  # false from sleep until the weights are back

    def start(self) -> None:
        """Do nothing: an engine in this process has nothing to start."""

    @property
    @abstractmethod
    def under_way(self) -> int:
        """How many requests were submitted and neither collected nor released."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """One response per request, in order; nothing else may be under way."""
        self._require_idle()
        self.submit(requests, sampling)
        responses: dict[int, Response] = {}
        while finished := self.collect():
            responses |= {id(request): response for request, response in finished}
        return [responses[id(request)] for request in requests]

    def _require_idle(self) -> None:
        if self.under_way:
            raise InvalidArgument("the engine has responses under way", advice="collect or release them first")

    def _require_room(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if not self._ready:
            raise InvalidArgument("the engine is asleep", advice="wake it and load its weights first")
        longest = max(len(request.prompt_ids) + sampling.limit(request) for request in requests)
        if longest > self.max_length:
            raise InvalidArgument(
                f"prompt and max_tokens need {longest} tokens, the model's limit is {self.max_length}", key="max_tokens"
            )


def context_limit(config: PreTrainedConfig, max_length: int | None = None) -> int:
    """Maximum tokens of a row, at most ``max_length``, and below where scaled positions depend on the row's length."""
    text = config.get_text_config()
    limit = int(getattr(text, "max_position_embeddings", None) or 4096)
    rope = getattr(text, "rope_parameters", None) or {}
    scalings = [rope, *rope.values()] if isinstance(rope, dict) else []  # one for all layers, or one per kind of layer
    for scaling in scalings:
        if isinstance(scaling, dict) and scaling.get("rope_type") in ("longrope", "dynamic"):
            original = scaling.get("original_max_position_embeddings")
            original = original or getattr(text, "original_max_position_embeddings", None)
            limit = min(limit, int(original or limit))
    return min(max_length or limit, limit)


def stop_tokens(tokenizer: Any, model: torch.nn.Module | None = None) -> list[int]:
    """The tokens that end a response: the tokenizer's end token, the generation config's and the chat template's."""
    stops = {tokenizer.eos_token_id, turn_end(tokenizer)}
    generation_stops = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops.update(generation_stops if isinstance(generation_stops, list) else [generation_stops])
    return sorted(stop for stop in stops if stop is not None)


def write_stop_tokens(model: torch.nn.Module, tokenizer: Any) -> None:
    """Let the model's generation config name all of its stop tokens, so that it also stops where others load it.

    A base model's config often names the end of a document only, and not the chat template's end of a message.
    """
    generation = getattr(model, "generation_config", None)
    stops = stop_tokens(tokenizer, model)
    if generation is not None:
        generation.eos_token_id = stops[0] if len(stops) == 1 else stops


def end_of_response(tokenizer: Any) -> int:
    """The token that ends a demonstrated response: the one of the chat template, else the tokenizer's end token."""
    token = turn_end(tokenizer)
    return int(tokenizer.eos_token_id if token is None else token)


def turn_end(tokenizer: Any) -> int | None:
    """The special token that the chat template puts after an assistant's message, None if there is none.

    A model with channels ends each channel with that token, so for such a model it is not the end of a response.
    """
    added: dict[str, int] = tokenizer.get_added_vocab()
    if "<|channel|>" in added or not getattr(tokenizer, "chat_template", None):
        return None
    chat = [("user", "?"), ("assistant", chat_template.PLACEHOLDER), ("user", "?")]
    messages = [{"role": role, "content": content} for role, content in chat]
    rendered = chat_template.render(tokenizer, messages)
    after = rendered.partition(chat_template.PLACEHOLDER)[2].lstrip()
    names = [name for name in added if name.strip() and after.startswith(name)]
    return added[max(names, key=len)] if names else None


def claim_device(device: torch.device) -> None:
    """Make ``device`` the current one of this thread; new threads start on the first GPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)


def release_memory(device: torch.device) -> None:
    """Return memory that torch has freed and cached to the driver, for other libraries and processes."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
