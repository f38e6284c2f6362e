"""The critic's loss.

The larger of two errors is taken, so that clipping can only slow a value down. With the clipped error alone a value
that has moved too far would have no gradient to return.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gagpo.base.errors import InvalidArgument


def value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, clip: float | None = 0.2, count: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's value loss ``0.5 mean max((v - R)^2, (clip(v, old ± clip) - R)^2)``, and metric sums for :func:`summary`.

    value: with gradient, one per token or turn.
    old_value: when the batch was sampled.
    target: R, see :attr:`gagpo.credit.Credit.target`.
    clip: None for the squared error.
    count: number of values in the whole mini-batch, by default in this call.
    """
    if not value.shape == old_value.shape == target.shape:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (value, old_value, target))
        raise InvalidArgument(f"value, old_value and target must have one shape, got {shapes}", key="value")
    if value.numel() == 0:
        raise InvalidArgument("there are no values", key="value")
    old_value = old_value.detach().to(value.dtype)
    target = target.detach().to(value.dtype)
    error = (value - target).square()
    largest = error
    if clip is not None:
        clipped = torch.clamp(value, old_value - clip, old_value + clip)
        largest = torch.maximum(error, (clipped - target).square())
    loss = 0.5 * largest.sum() / (count or value.numel())
    with torch.no_grad():
        metrics = {
            "values": value.new_full((), float(value.numel())),
            "value_clipped": (largest > error).sum(),
            "value_error": error.sum(),
            "target": target.sum(),
            "target_squared": target.square().sum(),
        }
    return loss, metrics
