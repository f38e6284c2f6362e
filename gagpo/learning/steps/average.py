"""A moving average of the weights in training: steadier than they are, it can be measured, sampled from and held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from gagpo.distributed.ranks import Ranks
from gagpo.settings import AverageSettings


class AveragedWeights:
    """``decay * average + (1 - decay) * weights`` after every iteration, from the weights that a run began with.

    Noise of single steps cancels in it, and what they agree on stays (Polyak and Juditsky 1992; for policies that are
    trained on rewards: Rame et al., WARP, 2406.16768). It lies in the host's memory, float32; of several ranks, each
    holds its part.

    parameters: those in training. saved: the average of a checkpoint, whole tensors in the order of the parameters.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], settings: AverageSettings, saved: Sequence[Tensor] | None = None
    ):
        self.parameters, self.settings = list(parameters), settings
        if saved is None:
            self._average = [tensor.to("cpu", copy=True) for tensor in self._local()]
        else:
            pairs = zip(saved, self.parameters, strict=True)
            self._average = [_part(tensor, parameter).to("cpu", copy=True) for tensor, parameter in pairs]

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights in."""
        for average, tensor in zip(self._average, self._local(), strict=True):
            average.lerp_(tensor.to("cpu"), 1.0 - self.settings.decay)

    @torch.no_grad()
    def swap(self) -> None:
        """The parameters become the average, and the average what they were; a second call undoes the first."""
        for place, tensor in enumerate(self._local()):
            own = tensor.to("cpu", copy=True)
            tensor.copy_(self._average[place])
            self._average[place] = own

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the parameters are the average."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def copy_to(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Copy the average into another model of the same layout (and, of several ranks, in the same parts)."""
        for parameter, average in zip(parameters, self._average, strict=True):
            _local(parameter).copy_(average)

    def distance(self, ranks: Ranks) -> float:
        """Length of the way from the average to the weights over the length of the weights; all ranks together."""
        pairs = list(zip(self._local(), self._average, strict=True))
        apart = ranks.total(sum(float((tensor.cpu() - average).square().sum()) for tensor, average in pairs))
        length = ranks.total(sum(float(tensor.square().sum()) for tensor, _ in pairs))
        return float((apart / max(length, 1e-30)) ** 0.5)

    def _local(self) -> list[Tensor]:
        return [_local(parameter) for parameter in self.parameters]


def _local(parameter: torch.nn.Parameter) -> Tensor:
    """The numbers themselves; of a sharded parameter those that lie here."""
    tensor = parameter.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _part(tensor: Tensor, parameter: torch.nn.Parameter) -> Tensor:
    """Of a whole tensor what lies here of the parameter."""
    if not isinstance(parameter, DTensor):
        return tensor
    mesh = parameter.device_mesh
    placed = distribute_tensor(tensor.to(mesh.device_type), mesh, parameter.placements)
    assert isinstance(placed, DTensor)
    return placed.to_local()
