"""Send weights to engines: each tensor once, by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from gagpo.agents.engines import adapters
from gagpo.agents.engines.adapters import adapter_parameters, base_tensors, is_adapted, merged_tensors
from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.precision import dtype_of
from gagpo.base.errors import GagpoError


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


def adapter_tensors(model: torch.nn.Module) -> Iterator[NamedTensor]:
    """The adapter's tensors, gathered, by their names in peft's files."""
    for name, tensor in adapter_parameters(model).items():
        yield name, gather(tensor.detach())


def base_weights(model: torch.nn.Module) -> Iterator[NamedTensor]:
    """The same as :func:`named_tensors` for the model without its adapter."""
    for name, tensor in base_tensors(model):
        yield name, gather(tensor.detach())


def checked(tensors: Iterable[NamedTensor], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[NamedTensor]:
    """Pass the tensors through. Raises: WeightsError unless they are those of ``shapes``, each once."""
    missing = dict(shapes)
    for name, tensor in tensors:
        shape = missing.pop(name, None)
        if shape != tuple(tensor.shape):
            known = "is unknown or came twice" if shape is None else f"has shape {shape} in the engine"
            raise WeightsError(f"parameter {name!r} of shape {tuple(tensor.shape)} {known}")
        yield name, tensor
    if missing:
        raise WeightsError(f"{len(missing)} parameters were not sent to the engine, the first {min(missing)!r}")


@dataclass
class SentBytes:
    """Counts the bytes of tensors that are sent to an engine."""

    total: int = 0

    def counted(self, tensors: Iterable[NamedTensor], item: int | None = None) -> Iterator[NamedTensor]:
        """Pass the tensors through and count them. item: bytes of a number when it is sent, if converted."""
        for name, tensor in tensors:
            self.total += tensor.numel() * (item or tensor.element_size())
            yield name, tensor


@dataclass(frozen=True)
class AdapterShape:
    """A LoRA adapter without its numbers.

    targets: names of the adapted layers.
    fan_in_fan_out: whether the layers hold their matrices transposed, as GPT-2's do.
    tensors: shapes by the names in peft's files.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    fan_in_fan_out: bool
    tensors: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: Any) -> AdapterShape | None:
        """The shape of a model's adapter, None without one."""
        if not is_adapted(model):
            return None
        (config,) = model.peft_config.values()
        shapes = {name: tuple(tensor.shape) for name, tensor in adapter_parameters(model).items()}
        return cls(config.r, config.lora_alpha, tuple(sorted(config.target_modules)), config.fan_in_fan_out, shapes)

    def write(self, folder: Path, tensors: Iterable[NamedTensor]) -> None:
        """Write the adapter as peft does, without its base model."""
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in checked(tensors, self.tensors)}
        save_file(held, str(folder / adapters.WEIGHTS), metadata={"format": "pt"})
        # Engines compare the last part of a layer's name; the file of tensors says which layers have an adapter.
        endings = sorted({target.rpartition(".")[2] for target in self.targets})
        adapters.write_config(folder, self.rank, self.alpha, endings, self.fan_in_fan_out)


def tensors_for(engine: Engine, model: torch.nn.Module, dtype: torch.dtype | None = None) -> Iterator[NamedTensor]:
    """What ``engine`` takes after an update of ``model``: the adapter alone if it has the rest, else all weights."""
    if getattr(engine, "takes_adapter", False) and is_adapted(model):
        return adapter_tensors(model)
    return named_tensors(model, merged=not engine.shares_weights, dtype=dtype)


def gather(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Gather a sharded tensor in ``dtype``, by all ranks together; any other tensor is returned as it is.

    Parts in the host's memory are gathered on the GPUs, whose links are faster.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    parts: DTensor = tensor.to(tensor.device_mesh.device_type, dtype or tensor.dtype)  # type: ignore[assignment]
    gathered: Tensor = parts.full_tensor()
    return gathered


@contextmanager
def refreshed(engine: Engine, model: torch.nn.Module, sleep: bool = True) -> Iterator[None]:
    """A context in which ``model`` may change; the engine gets the new weights at its end.

    If the block raises, a sleeping engine stays asleep and rejects requests.

    sleep: free the engine's memory during the block; nothing may be under way.
    """
    if sleep:
        engine.sleep()
    yield
    if sleep:
        engine.wake()
    engine.load_weights(tensors_for(engine, model, dtype_of(engine.dtype)))


@torch.no_grad()
def copy_tensors(model: torch.nn.Module, tensors: Iterable[NamedTensor]) -> None:
    """Copy tensors into the model's parameters by name; a tensor that is the parameter itself is skipped."""
    own = dict(model.named_parameters(remove_duplicate=False))
    missing = {name for name, _ in model.named_parameters()}
    for name, tensor in tensors:
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
