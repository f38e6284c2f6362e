"""Optimiser states as named tensors on disk, written by any number of ranks and read by any other.

Torch's distributed checkpoints in safetensors files: every rank writes its own parts, whose headers say where in the
whole tensor they stand, and reads what its own parts overlap. Nothing in them is evaluated.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gagpo.base.errors import GagpoError
from gagpo.distributed.ranks import Ranks

# A process that trains alone is meant to save alone. For good, since saving goes on in a thread of its own.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

RATES = "groups.lr"
MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTUM = "momentum_buffer"
STEP = "step"
KEYS = (STEP, *MOMENTS, MOMENTUM, "codes1", "codes2", "scales1", "scales2")
"""What an optimiser's state of a parameter may be made of; codes and scales are moments in 8 bits."""


class StateError(GagpoError, ValueError):
    """States that cannot be read, or that belong to other parameters."""


def names_of(model: torch.nn.Module, critic: torch.nn.Module | None) -> dict[str, Tensor]:
    """The trained parameters of a run by the names of their states, in the order of the optimiser's groups' making."""
    found: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if critic is not None:
        found |= {f"critic.{name}": p for name, p in critic.named_parameters() if p.requires_grad}
    return found


@runtime_checkable
class NamedStates(Protocol):
    """An optimiser whose states are not tensors shaped like its parameters, and that names them itself."""

    def tensors_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter by the names of its parts; empty before its first step."""
        ...

    def wanted_of(self, parameter: Tensor, stored: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Tensors for a stored state, whose parts have these sizes, to be read into."""
        ...

    def take(self, parameter: Tensor, found: Mapping[str, Tensor]) -> None:
        """Go on from what was read."""
        ...


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's state under names that say whose it is; parameters that had no step yet are left out."""
    found = {RATES: torch.tensor([group["lr"] for group in optimizer.param_groups], dtype=torch.float64)}
    for name, parameter in names.items():  # under the name of the parameter, whatever its place
        if isinstance(optimizer, NamedStates):
            state = optimizer.tensors_of(parameter)
        else:
            state = optimizer.state.get(parameter) or {}
        found |= {f"{name}.{key}": state[key] for key in state if key in KEYS}
    return found


def fill_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Give the optimiser the state of :func:`optimizer_tensors` in ``folder``, whoever wrote it.

    Raises :class:`StateError`.
    """
    there = stored_sizes(folder)
    rates = torch.zeros(len(optimizer.param_groups), dtype=torch.float64)
    of_each = {name: _wanted(optimizer, name, parameter, there) for name, parameter in names.items()}
    wanted = {RATES: rates} | {f"{name}.{key}": x for name, found in of_each.items() for key, x in found.items()}
    if odd := sorted(there.keys() - wanted.keys()):
        raise StateError(f"{folder} holds {odd[0]!r}, which is of no parameter of this run")
    read(wanted, folder, ranks)
    for group, rate in zip(optimizer.param_groups, rates.tolist(), strict=True):
        group["lr"] = rate
    for name, found in of_each.items():
        if found and isinstance(optimizer, NamedStates):
            optimizer.take(names[name], found)
        elif found:
            optimizer.state[names[name]] = found


def _wanted(
    optimizer: torch.optim.Optimizer, name: str, parameter: Tensor, there: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Tensors for what is stored of a parameter's state, by the names of its parts; empty where nothing is."""
    if isinstance(optimizer, NamedStates):
        return optimizer.wanted_of(parameter, {key: there[f"{name}.{key}"] for key in KEYS if f"{name}.{key}" in there})
    whole = any(parameter is p for group in optimizer.param_groups if "ns_steps" in group for p in group["params"])
    keys = (MOMENTUM,) if whole else (STEP, *MOMENTS)  # Muon's, or AdamW's
    if f"{name}.{keys[0]}" not in there:
        return {}
    like = parameter.detach()
    return {key: torch.zeros(()) if key == STEP else torch.zeros_like(like) for key in keys}


def stored_sizes(folder: Path) -> dict[str, torch.Size]:
    """The whole size of every tensor in the files of ``folder``, by name; StateError where they cannot be read."""
    names = stored_names(folder)
    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        return {name: torch.Size(cast(TensorStorageMetadata, found[name]).size) for name in names}
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise StateError(f"{folder} cannot be read: {reason(error)}") from None


def stored_names(folder: Path) -> set[str]:
    """The names of the tensors in the files of ``folder``."""
    from safetensors import SafetensorError, safe_open

    found: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found |= set(file.keys())
        except (OSError, SafetensorError) as error:
            raise StateError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    return found


def write(tensors: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Write tensors, each rank its parts; all are on the disk when it returns on the first rank.

    Raises what torch makes of a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(dict(tensors), storage_writer=writer, **_among(ranks))


def read(tensors: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Fill ``tensors``, whole or sharded, from the files of ``folder``; StateError for any that is not there."""
    try:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), **_among(ranks))
    except Exception as error:  # torch raises whatever the damaged bytes lead to
        raise StateError(f"{folder} cannot be read: {reason(error)}") from None


def _among(ranks: Ranks) -> dict[str, Any]:
    return {"no_dist": True} if ranks.alone else {"process_group": ranks.group}


def reason(error: Exception) -> str:
    """The first failure that torch's own error holds, on one line."""
    inner = next(iter(getattr(error, "failures", {}).values()), error)
    return " ".join(str(inner[0] if isinstance(inner, tuple) else inner).split())[:200] or type(error).__name__
