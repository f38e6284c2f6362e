"""Optimizer states as named tensors on disk, written by any number of ranks and read by any other number.

They are torch's distributed checkpoints in safetensors files. Every rank writes its shards, with their offsets in the
whole tensor, and reads what its own shards overlap. Loading runs no code from the files.

Shards with their offsets, and not one file per rank, let a run resume on another number of ranks. The files are
safetensors and no pickles: reading a checkpoint of a stranger runs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gagpo.base.errors import GagpoError
from gagpo.distributed.ranks import Ranks

# A process that trains alone also saves alone. Filtered for good, since saving goes on in another thread.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

RATES = "groups.lr"
STEP = "step"
MOMENTS = ("exp_avg", "exp_avg_sq")


class StoredTensor(NamedTuple):
    """Full size and type of a tensor on disk."""

    size: torch.Size
    dtype: torch.dtype


Stored = Mapping[str, StoredTensor]


class StateError(GagpoError, ValueError):
    """The states cannot be read, or belong to other parameters."""


def names_of(model: torch.nn.Module, critic: torch.nn.Module | None) -> dict[str, Tensor]:
    """The trained parameters by the names of their states, in the order of the optimizer's groups."""
    parameters: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if critic is not None:
        parameters |= {f"critic.{name}": p for name, p in critic.named_parameters() if p.requires_grad}
    return parameters


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An optimizer's state by parameter name and key; without parameters that had no step yet."""
    tensors = {RATES: torch.tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64)}
    for name, parameter in names.items():
        state = optimizer.state.get(parameter) or {}
        tensors |= {f"{name}.{key}": torch.as_tensor(value) for key, value in state.items()}
    return tensors


def fill_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Load the state of :func:`optimizer_tensors` from ``folder``; raises :class:`StateError`."""
    on_disk = stored(folder)
    rates = torch.zeros(len(optimizer.param_groups), dtype=torch.float64)
    states = {name: _empty_state(name, parameter, on_disk) for name, parameter in names.items()}
    tensors = {RATES: rates}
    for name, state in states.items():
        tensors |= {f"{name}.{key}": tensor for key, tensor in state.items()}
    surplus = sorted(on_disk.keys() - tensors.keys())
    if surplus:
        raise StateError(f"contains {surplus[0]!r}, which belongs to no parameter of this run", where=folder)
    read(tensors, folder, ranks)
    for group, rate in zip(optimizer.param_groups, rates.tolist(), strict=True):
        group["lr"] = rate
    for name, state in states.items():
        if state:
            optimizer.state[names[name]] = state


def _empty_state(name: str, parameter: Tensor, on_disk: Stored) -> dict[str, Tensor]:
    """Tensors to read a parameter's stored state into, by key; empty if none is stored."""
    state: dict[str, Tensor] = {}
    if f"{name}.{MOMENTS[0]}" not in on_disk:
        return state
    for key in (STEP, *MOMENTS):
        entry = on_disk.get(f"{name}.{key}")
        if entry is not None and key in MOMENTS:
            # Sharded as the parameter is: each rank reads the part of the file that its own shard overlaps.
            state[key] = torch.zeros_like(parameter.detach(), dtype=entry.dtype)
        elif entry is not None:
            state[key] = torch.zeros(entry.size, dtype=entry.dtype)
    return state


def stored(folder: Path) -> Stored:
    """Every tensor in the files of ``folder``, by name; raises :class:`StateError` if they cannot be read."""
    names = stored_names(folder)
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        entries = {name: cast(TensorStorageMetadata, metadata[name]) for name in names}
        return {name: StoredTensor(torch.Size(entry.size), entry.properties.dtype) for name, entry in entries.items()}
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise StateError(f"cannot be read: {reason(error)}", where=folder) from None


def stored_names(folder: Path) -> set[str]:
    """The names of the tensors in the files of ``folder``."""
    from safetensors import SafetensorError, safe_open

    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names |= set(file.keys())
        except (OSError, SafetensorError) as error:
            raise StateError(f"cannot be read: {str(error).splitlines()[0]}", where=path) from None
    return names


def write(tensors: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Write tensors, each rank its shards; all are on the disk when it returns on the first rank.

    A full disk raises an error of torch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(dict(tensors), storage_writer=writer, **_among(ranks))


def read(tensors: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Fill ``tensors``, whole or sharded, from the files of ``folder``; StateError for a missing or other tensor."""
    on_disk = stored(folder)
    for name, tensor in tensors.items():
        if name not in on_disk:
            raise StateError(f"has no tensor {name!r}", where=folder)
        size = on_disk[name].size
        if size != tensor.shape:
            raise StateError(f"tensor {name!r} has shape {tuple(size)}, not {tuple(tensor.shape)}", where=folder)
    try:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), **_among(ranks))
    except (Exception, CheckpointException) as error:  # torch raises whatever the damaged bytes lead to
        raise StateError(f"cannot be read: {reason(error)}", where=folder) from None


def _among(ranks: Ranks) -> dict[str, Any]:
    return {"no_dist": True} if ranks.alone else {"process_group": ranks.group}


def reason(error: BaseException) -> str:
    """The first failure in torch's error, on one line."""
    inner = next(iter(getattr(error, "failures", {}).values()), error)
    return " ".join(str(inner[0] if isinstance(inner, tuple) else inner).split())[:200] or type(error).__name__
