"""How much of a gradient is signal: what the mini-batches of an iteration agree on, against what they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gagpo.distributed.ranks import Ranks


class GradientSignal:
    """Gradients of the mini-batches of one iteration; each is a mean over other task groups.

    With n gradients g_i the mean of the products <g_i, g_j> over pairs estimates |G|^2, the square of the true
    gradient's length, without bias where the steps between them are short; the mean of |g_i|^2 is |G|^2 and the noise
    of one mini-batch (McCandlish et al. 2018, "An empirical model of large-batch training", appendix A).
    """

    def __init__(self) -> None:
        self._sum: list[Tensor] = []
        self._squares: list[float] = []

    @torch.no_grad()
    def observe(self, parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> None:
        """Take in the gradients as they are; all ranks together."""
        gradients = [_local(parameter) for parameter in parameters]
        self._squares.append(_square(gradients, ranks))
        if not self._sum:
            self._sum = [gradient.clone() for gradient in gradients]
            return
        for total, gradient in zip(self._sum, gradients, strict=True):
            total.add_(gradient)

    def values(self, groups: float, ranks: Ranks) -> dict[str, float]:
        """``gradient_signal``: |G|^2 over the mean of |g_i|^2, at most 1, below 0 by chance where there is none.

        ``critical_groups``: how many task groups a mini-batch needs for as much signal as noise, where there is any
        signal. groups: of a mini-batch. Nothing from fewer than two gradients, or where all are 0.
        """
        count, squares = len(self._squares), math.fsum(self._squares)
        if count < 2 or squares == 0:
            return {}
        share = (_square(self._sum, ranks) - squares) / ((count - 1) * squares)
        found = {"gradient_signal": share}
        return {**found, "critical_groups": groups * (1 - share) / share} if share > 0 else found


def _local(parameter: torch.nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        gradient = torch.zeros_like(parameter)
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _square(tensors: Sequence[Tensor], ranks: Ranks) -> float:
    return float(ranks.total(math.fsum(float(tensor.double().square().sum()) for tensor in tensors)))
