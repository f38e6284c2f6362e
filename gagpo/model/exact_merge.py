"""Merge an adapter that ships with the package into its base, with the same bits on every machine.

Values of shipped adapters have few bits: each is a small integer times a power of two. In float64 every product and
sum of them is exact, so neither the number of threads nor the CPU's order of summation matters, and only the last
step, from float64 to the weights' float32, rounds. The merge of an adapter in training
(:func:`gagpo.model.adapters.merge`) is in float32, as the one that its engine gets with every update.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gagpo.model import adapters
from gagpo.model.adapters import AdapterError


def factors_of(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """The matrices A (rank, inputs) and B (outputs, rank) of every adapted layer, by the layer's name.

    Raises: AdapterError for a file that cannot be read, and a tensor that is not LoRA's or not finite.
    """
    path = folder / adapters.WEIGHTS
    tensors = adapters.tensors_of(path)
    rank = adapters.config_of(folder).rank
    layers = sorted({name.removeprefix(adapters.PREFIX).rpartition(".lora_")[0] for name in tensors})
    expected = {_tensor_name(layer, side) for layer in layers for side in "AB"}
    different = sorted(expected ^ tensors.keys())
    if different or not layers:
        raise AdapterError(f"tensor {different[0] if different else 'lora_A'!r} is missing or not LoRA's", where=path)
    for name, tensor in tensors.items():
        rank_axis = 0 if ".lora_A." in name else 1
        if tensor.dim() != 2 or tensor.shape[rank_axis] != rank:
            raise AdapterError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, its config has rank {rank}", where=path
            )
        if not bool(torch.isfinite(tensor).all()):
            raise AdapterError(f"tensor {name!r} is not finite", where=path)
    return {layer: (tensors[_tensor_name(layer, "A")], tensors[_tensor_name(layer, "B")]) for layer in layers}


@torch.no_grad()
def merge_exactly(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """Add the adapter of ``folder`` to the weights of ``model``, in place, without peft.

    Raises: AdapterError if the adapter cannot be read, or has layers that the model does not have.
    """
    config = adapters.config_of(folder)
    weights = dict(model.named_parameters())
    for layer, (matrix_a, matrix_b) in factors_of(folder).items():
        change = (config.alpha / config.rank) * (matrix_b.double() @ matrix_a.double())
        if config.fan_in_fan_out:
            change = change.T
        weight = weights.get(f"{layer}.weight")
        if weight is None or weight.shape != change.shape:
            raise AdapterError(f"the adapter in {folder} changes {layer!r}, which its base model does not have")
        # on the host: some devices have no float64
        weight.copy_((weight.cpu().double() + change).to(weight.dtype))
    return model


def _tensor_name(layer: str, side: str) -> str:
    return f"{adapters.PREFIX}{layer}.lora_{side}.weight"
