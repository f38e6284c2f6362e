"""The weights of a model as a stream: each tensor once, by its name.

A stream and no dictionary: of a sharded model only one tensor at a time is whole in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gagpo.base.errors import GagpoError
from gagpo.model.adapters import AdapterForm, adapter_parameters, base_tensors, merged_tensors

NamedTensor = tuple[str, Tensor]


class WeightsError(GagpoError, ValueError):
    """The tensors are those of another model."""


def named_tensors(
    model: torch.nn.Module, merged: bool = True, dtype: torch.dtype | None = None
) -> Iterator[NamedTensor]:
    """Every parameter once, tied ones under their first name, for :meth:`Engine.load_weights`.

    Sharded weights are gathered one by one and freed when the next one is read; all ranks read them together.

    merged: add an adapter to its weights; false for an engine on this module.
    dtype: of gathered weights; others stay as they are.
    """
    named = merged_tensors(model) if merged else model.named_parameters()
    for name, tensor in named:
        yield name, gather(tensor.detach(), dtype)


class PolicyTensors:
    """The weights of a policy in training, for :meth:`Engine.load_weights`; iterating gives :func:`named_tensors`.

    An engine that holds the weights below an adapter may read the adapter alone. Each method gathers sharded weights
    one by one, so all ranks must read the same ones together.

    dtype: of gathered weights, by default their own.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None):
        self._model = model
        self._dtype = dtype

    def __iter__(self) -> Iterator[NamedTensor]:
        return named_tensors(self._model, dtype=self._dtype)

    @property
    def adapter_form(self) -> AdapterForm | None:
        """The adapter without its numbers; None if the policy has none."""
        return AdapterForm.of(self._model)

    def base(self) -> Iterator[NamedTensor]:
        """The weights below the adapter, by the names of :func:`named_tensors`."""
        for name, tensor in base_tensors(self._model):
            yield name, gather(tensor, self._dtype)

    def adapter(self) -> Iterator[NamedTensor]:
        """The adapter's tensors, by their names in peft's files."""
        for name, tensor in adapter_parameters(self._model).items():
            yield name, gather(tensor.detach())


def checked(tensors: Iterable[NamedTensor], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[NamedTensor]:
    """Pass the tensors through. Raises: WeightsError unless they are those of ``shapes``, each once."""
    missing = dict(shapes)
    for name, tensor in tensors:
        shape = missing.pop(name, None)
        if shape != tuple(tensor.shape):
            fault = "is unknown or came twice" if shape is None else f"has shape {shape} in the engine"
            raise WeightsError(f"parameter {name!r} of shape {tuple(tensor.shape)} {fault}")
        yield name, tensor
    if missing:
        raise WeightsError(f"{len(missing)} parameters were not sent to the engine, the first {min(missing)!r}")


def gather(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Gather a sharded tensor in ``dtype``, by all ranks together; any other tensor is returned as it is.

    Parts in the host's memory are gathered on the GPUs, whose links are faster.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    local: DTensor = tensor.to(tensor.device_mesh.device_type, dtype or tensor.dtype)  # type: ignore[assignment]
    gathered: Tensor = local.full_tensor()
    return gathered


@torch.no_grad()
def copy_tensors(model: torch.nn.Module, tensors: Iterable[NamedTensor]) -> None:
    """Copy tensors into the model's parameters by name; a tensor that is the parameter itself is skipped.

    Raises: WeightsError as :func:`checked`.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in checked(tensors, {name: tuple(parameter.shape) for name, parameter in parameters.items()}):
        parameter = parameters[name]
        if parameter.data_ptr() != tensor.data_ptr() or parameter.dtype != tensor.dtype:
            parameter.copy_(tensor)
