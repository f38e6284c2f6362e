"""A moving average of the weights in training: steadier than they are, it can be measured, sampled from and held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from gagpo.distributed.ranks import Ranks
from gagpo.settings import AverageSettings

ETA = 3  # of the polynomial decay: the larger, the fewer iterations the average reaches over


class AveragedWeights:
    """``keep * average + (1 - keep) * weights`` after every iteration, from the weights that a run began with.

    Noise of single steps cancels in it, and what they agree on stays (Polyak and Juditsky 1992; for policies that are
    trained on rewards: Rame et al., WARP, 2406.16768). It lies in the host's memory, float32; of several ranks, each
    holds its part.

    ``keep`` is ``settings.decay`` where that is set. Else it grows: after iteration t of 1, 2, ... it is
    ``(t - 1) / (t + 3)``, the polynomial decay of Shamir and Zhang (2013, 1212.1824) with their eta of 3. Iteration s
    then weighs about as s ** 3. So the average lags a fifth of the run behind, be it short or long, and the weights
    that a run began with have no part in it.

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
    def update(self, iteration: int, ranks: Ranks) -> float:
        """Take in the weights of ``iteration``, from 1; all ranks together.

        Returns the length of the way from the average to the weights over the length of the weights.
        """
        apart = length = 0.0
        for average, tensor in zip(self._average, self._local(), strict=True):
            weights = tensor.to("cpu")
            average.lerp_(weights, 1.0 - kept(self.settings, iteration))
            apart += float((weights - average).square().sum())
            length += float(weights.square().sum())
        return float((ranks.total(apart) / max(ranks.total(length), 1e-30)) ** 0.5)

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

    def _local(self) -> list[Tensor]:
        return [_local(parameter) for parameter in self.parameters]


def kept(settings: AverageSettings, iteration: int) -> float:
    """Share of the average that ``iteration``, from 1, keeps."""
    return (iteration - 1) / (iteration + ETA) if settings.decay is None else settings.decay


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
