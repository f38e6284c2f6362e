"""A moving average of the trained weights, evaluated at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

ETA = 3
"""Eta of the polynomial decay: the larger, the fewer iterations in the average."""


class AveragedWeights:
    """``keep * average + (1 - keep) * weights`` after each iteration, in host memory; each rank holds its shard.

    Averaging reduces the noise of single steps (Polyak and Juditsky 1992; Rame et al., WARP, 2406.16768). After
    iteration t = 1, 2, ... ``keep`` is ``(t - 1) / (t + 3)``, the polynomial decay of Shamir and Zhang (1212.1824) with
    eta 3. The average lags a fifth of the run behind, and does not contain the initial weights.

    parameters: those in training.
    saved: the average of a checkpoint, this rank's shards in the order of the parameters.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], saved: Sequence[Tensor] | None = None):
        self.parameters = list(parameters)
        if saved is None:
            self._average = [tensor.to("cpu", copy=True) for tensor in self._local()]
        else:
            self._average = [tensor.to("cpu", copy=True) for tensor in saved]

    @torch.no_grad()
    def update(self, iteration: int, total: Callable[[float], float] = float) -> float:
        """Add the weights of ``iteration``, from 1, on all ranks; returns the relative distance to the average.

        total: sums a number over the ranks.
        """
        distance = length = 0.0  # squared
        for average, tensor in zip(self._average, self._local(), strict=True):
            weights = tensor.to("cpu")
            average.lerp_(weights, 1.0 - average_weight(iteration))
            distance += float((weights - average).square().sum())
            length += float(weights.square().sum())
        return float((total(distance) / max(total(length), 1e-30)) ** 0.5)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the parameters hold the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for index, tensor in enumerate(self._local()):
            weights = tensor.to("cpu", copy=True)
            tensor.copy_(self._average[index])
            self._average[index] = weights

    def _local(self) -> list[Tensor]:
        return [local(parameter) for parameter in self.parameters]


def average_weight(iteration: int) -> float:
    """Weight of the old average in ``iteration``, from 1."""
    return (iteration - 1) / (iteration + ETA)


def local(parameter: torch.nn.Parameter) -> Tensor:
    """The parameter's values; of a sharded one, those on this rank."""
    tensor = parameter.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, parameter: torch.nn.Parameter) -> Tensor:
    """This rank's shard of a whole tensor, as of ``parameter``."""
    if not isinstance(parameter, DTensor):
        return tensor
    mesh = parameter.device_mesh
    placed = distribute_tensor(tensor.to(mesh.device_type), mesh, parameter.placements)
    assert isinstance(placed, DTensor)
    return placed.to_local()
