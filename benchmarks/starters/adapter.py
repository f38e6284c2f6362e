"""A trained adapter as the files of a starter: composed over its stages, rounded to few bits, and the cost measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.starters.players import StubbornExpert
from benchmarks.starters.rounding import round_rows
from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.learning.packing import packing_of
from gagpo.model import adapters, pretrained
from gagpo.model.adapters import AdapterForm, Base
from gagpo.model.exact_merge import factors_of, merge_exactly
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.logprobs import token_logprobs
from gagpo.settings import RunSettings
from gagpo.sft.adapter import adapter_of
from gagpo.sft.demonstrations import expert_episodes, rephrase
from gagpo.sft.rows import tokenized_rows
from gagpo.sft.run import context_of

BITS = 7  # of a value, unless another number is asked for
EPISODES = 8  # of the expert, on which the cost of rounding is measured


@dataclass(frozen=True)
class Composed:
    """The sum of the adapters between a model and its base.

    base: one of :data:`gagpo.model.pretrained.MODELS`.
    layers: A (rank, inputs) and B (outputs, rank) of every layer, whose output is ``W x + B A x``.
    """

    base: str
    layers: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def rank(self) -> int:
        return max(len(matrix_a) for matrix_a, _ in self.layers.values())

    @property
    def parameters(self) -> int:
        return sum(matrix.numel() for pair in self.layers.values() for matrix in pair)


def compose(model: str) -> Composed:
    """The adapter of ``model`` on a pretrained model. Stages that each trained a new adapter add up, and so do ranks.

    Raises: InvalidArgument if something below ``model`` is neither an adapter nor a pretrained model.
    """
    stages = []
    name = model
    while name not in pretrained.MODELS:
        folder = adapter_of(name) if Path(pretrained.folder_of(name)).is_dir() else None
        if folder is None:
            choices = ", ".join(pretrained.MODELS)
            raise InvalidArgument(
                f"is no adapter on a pretrained model: {name} has no adapter",
                where=model,
                advice=f"train with sft.lora or lora.rank from {choices}",
            )
        stages.append(folder)
        name, _ = adapters.base_of(folder)
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for folder in stages:
        config = adapters.config_of(folder)
        if config.fan_in_fan_out:
            raise InvalidArgument("its layers hold transposed matrices, which are not packed", where=folder)
        for layer, (matrix_a, matrix_b) in factors_of(folder).items():
            layers.setdefault(layer, []).append((matrix_a.float(), matrix_b.float() * (config.alpha / config.rank)))
    if len({len(pairs) for pairs in layers.values()}) > 1:
        raise InvalidArgument(
            f"the stages of {model} adapt different layers", advice="train them with the same lora.targets"
        )
    return Composed(
        name,
        {
            layer: (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], 1))
            for layer, pairs in layers.items()
        },
    )


def write_adapter(model: str, folder: Path, bits: int | None, settings: RunSettings) -> dict[str, object]:
    """Write the adapter of ``model`` to ``folder`` in peft's format, in half precision; what the manifest says of it.

    Raises: InvalidArgument if the model has another tokenizer than its base, or rounding leaves half precision.
    """
    composed = compose(model)
    _require_same_tokenizer(model, composed.base)
    base = load_model(composed.base)
    parameters = sum(parameter.numel() for parameter in base.parameters())
    bits = BITS if bits is None else bits
    tensors = {name: _packed(name, tensor, bits) for name, tensor in _named(composed.layers)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    # B holds alpha / rank already
    form = AdapterForm(composed.rank, float(composed.rank), tuple(sorted(composed.layers)), False, shapes)
    adapters.write(form, Base.of(composed.base, base), folder, tensors)
    cost = rounding_cost(load_model(model), merge_exactly(base, folder), settings, load_tokenizer(composed.base))
    return {
        "base": composed.base,
        "parameters": parameters,
        "adapter": {"rank": composed.rank, "parameters": composed.parameters, "bits": bits, "cost": cost},
    }


def _named(layers: Mapping[str, tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for layer, pair in layers.items():
        for side, matrix in zip("AB", pair, strict=True):
            yield f"{adapters.PREFIX}{layer}.lora_{side}.weight", matrix.contiguous()


def _packed(name: str, tensor: Tensor, bits: int) -> Tensor:
    """The matrix rounded to ``bits``, in half precision, which holds the rounded values exactly."""
    rounded = round_rows(tensor, bits)
    half = rounded.half()
    if not torch.equal(half.float(), rounded):
        raise InvalidArgument(
            f"values of {bits} bits do not fit half precision", key="--bits", where=name, advice="choose fewer --bits"
        )
    return half


def _require_same_tokenizer(model: str, base: str) -> None:
    tokenizer, base_tokenizer = load_tokenizer(model), load_tokenizer(base)
    same_tokens = tokenizer.get_vocab() == base_tokenizer.get_vocab()
    if not same_tokens or tokenizer.chat_template != base_tokenizer.chat_template:
        raise InvalidArgument(
            f"has another tokenizer or chat template than {base}, which its starter would use", where=model
        )


@torch.no_grad()
def rounding_cost(
    model: torch.nn.Module, rounded: torch.nn.Module, settings: RunSettings, tokenizer: object
) -> dict[str, float]:
    """What rounding changes in the expert's responses, in nats a token.

    Returns: ``tokens`` measured; ``loss`` of the model and ``rounded_loss``, the mean negative log-probability;
    ``mean_difference`` and ``largest_difference`` of the log-probability of a token.
    """
    env = settings.all_environments[0]
    alone = settings.alone(env) if settings.environments else settings
    kwargs = env.environment.kwargs
    environment = make_env(env.environment.id, kwargs)
    tasks = environment.tasks(env.environment.split).require().ids[:EPISODES]
    environment.close()
    episodes = expert_episodes(alone, kwargs, StubbornExpert(), tasks, "rounding cost", lambda _: None)
    rephrase(episodes, alone)
    rows = [row.row(False) for row in tokenized_rows(episodes, context_of(alone, tokenizer))]  # type: ignore[arg-type]
    before, after = (
        torch.cat(
            [
                token_logprobs(network, batch, entropy="none")[0]
                for batch in packing_of(network, settings.model_copy(update={"device": "cpu"})).micro_batches(rows)
            ]
        )
        for network in (model, rounded)
    )
    difference = (before - after).abs()
    values = {
        "loss": -before.mean(),
        "rounded_loss": -after.mean(),
        "mean_difference": difference.mean(),
        "largest_difference": difference.max(),
    }
    return {"tokens": len(before), **{name: float(np.round(value.item(), 6)) for name, value in values.items()}}
