"""Check that a copy of the weights elsewhere gives the model's log-probabilities.

The copy answers prompts, and one forward pass of the model reads them with the responses. In float32 every
log-probability must agree. In half precision single ones differ by tenths of a nat, so the KL over many tokens is
compared with that of the first copy, which is rounding alone.

A copy that is silently wrong trains the model on the wrong ratios, and nothing fails. So each copy answers prompts
after each update, before it samples for training. The prompts are recent ones of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.model.dtypes import name_of
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import ModelError, untrained
from gagpo.model.shape import config_of
from gagpo.model.weights import NamedTensor, PolicyTensors, copy_tensors, named_tensors

TOLERANCE = 1e-3  # of a log-probability, in float32
NOISE = 2e-3  # KL of rounding alone
RISE = 4.0  # factor by which the KL of a later copy may exceed that of the first copy
PROMPTS = 8  # compared
EXACT_TOKENS = 4  # of a response in float32, where every token must agree
ROUNDED_TOKENS = 16  # of a response in half precision, where a mean is compared
TEMPERATURE = 0.8  # not 1, to detect a copy that reports log-probabilities without temperature
MAX_PROMPT = 2048  # tokens of a prompt that are read for the comparison


@dataclass(frozen=True)
class LogprobGap:
    """Distance of a copy from its model.

    error: largest difference of a log-probability.
    kl: mean KL over tokens, from the sampler to the model.
    """

    error: float
    kl: float


class PolicyReader(Protocol):
    """The policy in training, read by all ranks together.

    precision: what it computes in, by name.
    """

    device: torch.device
    precision: str

    def __call__(self, ids_T: Tensor, layout: PackedRows, keep_K: Tensor) -> Tensor:
        """Logits after the tokens at ``keep_K``."""

    def tensors(self, dtype: str) -> PolicyTensors:
        """The weights, gathered in ``dtype`` one by one."""


class ParityCheck:
    """Prompts for copies of ``model``, and the comparison of their responses.

    dtype: of the copies, by name.
    max_length: longest row.
    reader: returns the logits of a sharded policy in place of ``model``, whose weights are then not used. All ranks
        call it once in an update.
    """

    def __init__(self, model: torch.nn.Module, dtype: str, max_length: int, reader: PolicyReader | None = None):
        self.model = model
        self.reader = reader
        self.dtype = dtype
        weight = next(model.parameters())
        self._device = reader.device if reader else weight.device
        trainer_dtype = reader.precision if reader else name_of(weight.dtype)
        self.exact = dtype == trainer_dtype == "float32"
        self.sampling = Sampling(TEMPERATURE, EXACT_TOKENS if self.exact else ROUNDED_TOKENS)
        self._max_prompt = max_length - self.sampling.max_tokens
        self._recent: list[np.ndarray] = []
        self._snapshot: torch.nn.Module | None = None
        self._first_kl: float | None = None

    def against(self, tensors: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """Compare the next copy with these tensors, which it is about to get; returns the same tensors.

        A model that is trained here has them already. If they are a list, they were copied because training goes on
        meanwhile (``rollout.ahead``), and a second model takes them. A model that is not trained is filled with them as
        they pass.
        """
        if self.reader is not None:
            return tensors
        parameters = list(self.model.parameters())
        if not any(parameter.requires_grad for parameter in parameters):
            return self._fill(tensors)
        addresses = {parameter.data_ptr() for parameter in parameters}
        if not isinstance(tensors, list) or all(tensor.data_ptr() in addresses for _, tensor in tensors):
            self._snapshot = None
        else:
            self._snapshot = self._snapshot or like(self.model)
            copy_tensors(self._snapshot, tensors)
        return tensors

    def _fill(self, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        for name, tensor in tensors:  # copy before handing the tensor on, which may free it
            parameter = parameters.get(name)
            fits = parameter is not None and parameter.shape == tensor.shape
            if parameter is not None and fits and parameter.data_ptr() != tensor.data_ptr():
                parameter.data.copy_(tensor)
            yield name, tensor

    def last_weights(self) -> Iterator[NamedTensor] | None:
        """The weights of the last copy again, in any thread; None if they are sharded or nobody holds them any more."""
        if self.reader is not None:
            return None
        return named_tensors(self._snapshot or self.model)

    def remember(self, requests: Sequence[Request]) -> None:
        """Use some of these prompts for the next check."""
        prompts = [request.prompt_ids for request in requests[:PROMPTS] if request.session >= 0]
        self._recent = prompts or self._recent

    def prompts(self) -> list[Request]:
        """The prompts for a copy; their sessions are negative."""
        prompts = self._recent or [np.arange(8, dtype=np.int32)]
        max_prompt = min(self._max_prompt, MAX_PROMPT)
        return [Request(-1 - number, ids[:max_prompt], number) for number, ids in enumerate(prompts)]

    @torch.no_grad()
    def gaps(self, requests: Sequence[Request], copies: Sequence[Sequence[Response]]) -> list[LogprobGap]:
        """The gap of every copy, by one forward pass over all responses."""
        rows = [
            np.concatenate([request.prompt_ids, response.ids])
            for responses in copies
            for request, response in zip(requests, responses, strict=True)
        ]
        prompts = [len(request.prompt_ids) for _ in copies for request in requests]
        device = self._device
        lengths = [len(row) - 1 for row in rows]
        starts = np.cumsum([0, *lengths[:-1]])
        spans = zip(starts, prompts, lengths, strict=True)
        keep = np.concatenate([np.arange(start + prompt - 1, start + length) for start, prompt, length in spans])
        targets = np.concatenate([row[prompt:] for row, prompt in zip(rows, prompts, strict=True)])
        ids = torch.as_tensor(np.concatenate([row[:-1] for row in rows]), dtype=torch.long, device=device)
        model = self.model if self._snapshot is None else self._snapshot
        inputs = (ids, PackedRows(lengths, device), torch.as_tensor(keep, device=device))
        logits = (self.reader(*inputs) if self.reader else forward(model, *inputs)).float()
        logprobs = (logits / self.sampling.temperature).log_softmax(-1)
        target_K1 = torch.as_tensor(targets, dtype=torch.long, device=device)[:, None]
        counts = [sum(len(response.ids) for response in responses) for responses in copies]
        trainer_logprobs = np.split(logprobs.gather(-1, target_K1)[:, 0].cpu().numpy(), np.cumsum(counts)[:-1])
        return [
            _gap(expected - np.concatenate([response.logprobs for response in responses]))
            for expected, responses in zip(trainer_logprobs, copies, strict=True)
        ]

    def judge(self, gap: LogprobGap, server: str) -> None:
        """Raise ModelError, naming ``server``, if the copy is not the model."""
        name = type(self.model).__name__
        if self.exact:
            if not gap.error <= TOLERANCE:
                raise ModelError(
                    (
                        f"log-probabilities are {gap.error:.2g} away from those of {name}: it does not reproduce "
                        "this model"
                    ),
                    where=server,
                    advice="use engine: transformers",
                )
            return
        limit = 10 * NOISE if self._first_kl is None else max(NOISE, RISE * self._first_kl)
        if not gap.kl <= limit:
            raise ModelError(
                (
                    f"in {self.dtype} is a KL of {gap.kl:.2g} away from {name}, where rounding explains "
                    f"{limit:.2g}: it did not load the new weights"
                ),
                where=server,
                advice="use engine: transformers",
            )
        self._first_kl = gap.kl if self._first_kl is None else self._first_kl


def like(model: torch.nn.Module) -> torch.nn.Module:
    """A model of the same class without adapter, with arbitrary weights."""
    first = next(model.parameters())
    built = untrained(config_of(model), dtype=first.dtype)
    return built.to(first.device).requires_grad_(False).eval()


def _gap(difference: np.ndarray) -> LogprobGap:
    """The gap from the model's log-probabilities minus the copy's, at the sampled tokens."""
    return LogprobGap(float(np.abs(difference).max()), float((np.expm1(difference) - difference).mean()))
