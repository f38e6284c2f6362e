"""Frozen weights below an adapter in fewer bytes: matrices of linear layers in bfloat16 or in four bits.

With ``training.precision: bfloat16`` a linear layer rounds its weights to bfloat16 anyway, so bfloat16 storage gives
bit-identical updates. Runs are bit-identical if the model was published in bfloat16; otherwise the adapter is
merged into the rounded weights for sampling. Four bits are those of QLoRA (Dettmers et al. 2023): normal floats in
blocks of 64 with 8-bit scales. They change results. Embeddings, gains and a tied output layer stay in float32; with
four bits an untied output layer is in bfloat16.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gagpo.base.errors import GagpoError


class FrozenError(GagpoError, ValueError):
    """Weights cannot be stored as requested."""


def require_base(kind: str) -> None:
    """Raise FrozenError for four bits without bitsandbytes."""
    if kind == "4bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise FrozenError(
            "lora.base=4bit needs bitsandbytes, which is not installed: pip install 'gagpo[8bit]', or set "
            "lora.base=bfloat16"
        )


def shrink(model: Any, kind: str) -> None:
    """Store the frozen matrices of a model with adapter as ``kind``, in place.

    Raises: FrozenError for four bits in a model whose layers are not ``torch.nn.Linear``.
    """
    if kind == "float32":
        return
    require_base(kind)
    from transformers.pytorch_utils import Conv1D

    out, embedded = model.get_output_embeddings(), model.get_input_embeddings().weight
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D) and not layer.weight.requires_grad
    ]
    # One layer at a time, so that only one extra float32 matrix is held.
    for name, layer in found:
        if layer.weight is embedded:
            continue
        if kind == "bfloat16" or layer is out:
            layer.weight.data = layer.weight.data.to(torch.bfloat16)
        elif isinstance(layer, Conv1D):
            raise FrozenError(f"lora.base=4bit: {type(model).__name__} has no plain linear layers; set bfloat16")
        else:
            model.set_submodule(name, _quantized(layer))


def _quantized(layer: torch.nn.Linear) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about optional kernels
        import bitsandbytes

    kinds: Any = bitsandbytes.nn
    made = kinds.Linear4bit(
        layer.in_features, layer.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta"
    )
    options = {"quant_type": "nf4", "compress_statistics": True, "module": made}
    made.weight = kinds.Params4bit(layer.weight.data, requires_grad=False, **options)
    made.bias = layer.bias
    made.support_avx512bf16_for_cpu = False  # it would reorder the bytes for a kernel that is not used here
    quantized: torch.nn.Module = made.to(layer.weight.device).train(layer.training)
    return quantized


def is_quantized(layer: torch.nn.Module) -> bool:
    """Whether the layer's matrix is stored in four bits."""
    return getattr(getattr(layer, "weight", None), "quant_state", None) is not None


def unpacked(parameter: Tensor) -> Tensor:
    """The values of a parameter, float32 for a 4-bit one."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(parameter.data, state)
    return whole.float()


def quantized_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Names and layers with 4-bit matrices."""
    return ((name, layer) for name, layer in list(model.named_modules()) if is_quantized(layer))


def plain(layer: Any, weight_OI: Tensor) -> torch.nn.Linear:
    """A bfloat16 linear layer with the given weights, to replace a quantized one."""
    made = torch.nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    made.weight = torch.nn.Parameter(weight_OI.to(torch.bfloat16), requires_grad=False)
    made.bias = layer.bias
    return made
