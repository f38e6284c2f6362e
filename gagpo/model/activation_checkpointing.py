"""Gradient checkpointing without dropout: layers recompute their activations in the backward pass, to save memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def set_checkpointing_mode(model: torch.nn.Module, on: bool) -> None:
    """Set the training mode of layers with gradient checkpointing, which recompute their activations in it.

    All other layers stay in evaluation mode: dropout would make ratios of an unchanged policy differ from 1.
    """
    for module in model.modules():
        module.training = on and getattr(module, "gradient_checkpointing", False)


def checkpoint_activations(model: Any) -> None:
    """Enable gradient checkpointing."""
    model.gradient_checkpointing_enable()
    for module in model.modules():
        checkpoint = vars(module).get("_gradient_checkpointing_func")
        if checkpoint is not None:
            module._gradient_checkpointing_func = _EvaluationMode(checkpoint)


@dataclass(frozen=True)
class _EvaluationMode:
    """Runs checkpointed layers in evaluation mode, in the forward pass and the recomputation."""

    checkpoint: Callable[..., Any]

    def __call__(self, function: Any, *arguments: Any) -> Any:
        layer = getattr(getattr(function, "func", function), "__self__", None)

        def compute(*inputs: Any) -> Any:
            # transformers checkpoints a layer only in training mode, and the backward pass calls it in that mode again.
            training = getattr(layer, "training", False)
            if layer is not None:
                layer.training = False
            try:
                return function(*inputs)
            finally:
                if layer is not None:
                    layer.training = training

        return self.checkpoint(compute, *arguments)
