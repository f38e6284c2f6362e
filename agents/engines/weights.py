"""Weights on their way to an engine: when they go, each once by its name, and what refuses those of another model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gagpo.agents.engines.adapters import base_tensors, is_adapted, merged_tensors, stored
from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.precision import dtype_of
from gagpo.base.errors import GagpoError


class WeightsError(GagpoError, ValueError):
    """Tensors that are not the model's; the message names the first."""


def named_tensors(
    model: torch.nn.Module, merged: bool = True, dtype: torch.dtype | None = None
) -> Iterator[NamedTensor]:
    """What :meth:`Engine.load_weights` takes: every parameter once, tied ones under their first name.

    merged: an adapter is added to the weights it belongs to; false for an engine on this very module. Sharded weights
    are gathered one by one, each when its turn comes, and are freed when the next one's has come: all ranks go through
    them together. dtype: what they are gathered in; what is whole already stays as it is.
    """
    named = merged_tensors(model) if merged else model.named_parameters()
    for name, tensor in named:
        yield name, whole(tensor.detach(), dtype)


def adapter_tensors(model: torch.nn.Module) -> Iterator[NamedTensor]:
    """The adapter alone, by the names in peft's files, each tensor whole."""
    for name, tensor in stored(model).items():
        yield name, whole(tensor.detach())


def base_weights(model: torch.nn.Module, dtype: torch.dtype | None = None) -> Iterator[NamedTensor]:
    """What :func:`named_tensors` gives of the model without its adapter."""
    for name, tensor in base_tensors(model):
        yield name, whole(tensor.detach(), dtype)


def tensors_for(engine: Engine, model: torch.nn.Module, dtype: torch.dtype | None = None) -> Iterator[NamedTensor]:
    """What ``engine`` takes of ``model`` after an update: the adapter alone, where it has the rest, or all weights."""
    if getattr(engine, "takes_adapter", False) and is_adapted(model):
        return adapter_tensors(model)
    return named_tensors(model, merged=not engine.shares_weights, dtype=dtype)


def whole(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A sharded tensor with the parts of all ranks, who call this together, in ``dtype``; another one as it is.

    Parts that lie in the host's memory are gathered on the cards, which are faster among themselves.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    parts: DTensor = tensor.to(tensor.device_mesh.device_type, dtype or tensor.dtype)  # type: ignore[assignment]
    gathered: Tensor = parts.full_tensor()
    return gathered


@contextmanager
def refreshed(engine: Engine, model: torch.nn.Module, sleep: bool = True) -> Iterator[None]:
    """The block changes ``model``; after it, the engine samples from the model as it is then.

    sleep: the engine's memory is free within the block; it must have nothing under way. Caches of the old weights are
    of no use afterwards, so an engine that is in this process loses nothing by it. Where the block raises, the engine
    is left as it is: asleep, it answers nobody.
    """
    if sleep:
        engine.sleep()
    yield
    if sleep:
        engine.wake()
    engine.load_weights(tensors_for(engine, model, dtype_of(engine.dtype)))


@torch.no_grad()
def copy_tensors(model: torch.nn.Module, tensors: Iterable[NamedTensor]) -> None:
    """Copy tensors into the model's parameters by name; one that is the parameter itself is left as it is."""
    own = dict(model.named_parameters(remove_duplicate=False))
    missing = {name for name, _ in model.named_parameters()}
    for name, tensor in tensors:  # each is checked before it is copied
        parameter = own.get(name)
        if parameter is None:
            raise WeightsError(f"the engine's model has no parameter {name!r}; weights of another model were sent")
        if parameter.shape != tensor.shape:
            raise WeightsError(
                f"parameter {name!r} has shape {tuple(parameter.shape)} in the engine, {tuple(tensor.shape)} were sent"
            )
        missing.discard(name)
        if parameter.data_ptr() != tensor.data_ptr() or parameter.dtype != tensor.dtype:
            parameter.copy_(tensor)
    if missing:
        raise WeightsError(f"{len(missing)} parameters were not sent to the engine, the first {min(missing)!r}")
