"""Sharded weights: each rank holds a shard of every parameter, and gathers one layer at a time to compute it.

This is torch's ``fully_shard`` (FSDP2). Weights and optimizer states are float32 shards, weights are gathered in the
compute precision, and gradients are summed in float32. Every forward computation runs inside
:func:`gagpo.model.sharded.with_gathered_weights`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gagpo.distributed.ranks import Ranks
from gagpo.model.adapters import merge
from gagpo.model.dtypes import dtype_of
from gagpo.model.flat.attention import backbone_of, forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.sharded import ShardedUnit, with_gathered_weights
from gagpo.model.weights import named_tensors

# Log-probabilities and values are views of computed tensors; this package never changes them in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def shard(
    model: torch.nn.Module, ranks: Ranks, precision: str, device: str = "cpu", head: torch.nn.Module | None = None
) -> None:
    """Shard ``model`` in place over all ranks, and the critic's ``head`` that reads its hidden states.

    Every rank must hold the same weights. A model without gradients (a reference policy) frees all gathered weights
    after each pass.

    precision: of gathered weights; shards and gradients keep their own.
    """
    mesh = mesh_of(ranks, device)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = MixedPrecisionPolicy(cast_forward_inputs=False)
    policy = half if precision == "bfloat16" else whole
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    if head is not None:
        fully_shard(head, mesh=mesh, mp_policy=whole)
    unit = ShardedUnit(*(part for part in (model, head) if part is not None))
    trained = any(parameter.requires_grad for parameter in unit.parameters())
    fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=not trained)


def mesh_of(ranks: Ranks, device: str = "cpu") -> DeviceMesh:
    """A one-dimensional mesh of all ranks on the type of ``device``."""
    return init_device_mesh(torch.device(device).type, (ranks.world_size,))


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that are gathered one at a time: the model's ``_no_split_modules``, else its longest list."""
    backbone: torch.nn.Module = backbone_of(model)
    names = set(getattr(model, "_no_split_modules", None) or ())
    named = [module for module in backbone.modules() if type(module).__name__ in names]
    if named:
        inner = {id(below) for module in named for below in module.modules() if below is not module}
        return [module for module in named if id(module) not in inner]
    lists = [list(module) for module in backbone.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def sampled_from(model: torch.nn.Module, ranks: Ranks, dtype: str, whole: bool = True) -> torch.nn.Module:
    """The model for the engine: the policy itself, or a copy if the policy will be sharded.

    whole: copy the weights, to sample from; else the copy is on the device ``meta`` and takes no memory.
    """
    if ranks.alone:
        return model
    known: dict[int, object] = {}
    if not whole:
        for tensor in model.parameters():
            known[id(tensor)] = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
        known |= {id(tensor): torch.empty_like(tensor, device="meta") for tensor in model.buffers()}
    return merge(copy.deepcopy(model, known)).to(dtype_of(dtype)).requires_grad_(False)


class Reader:
    """A sharded policy as a :class:`gagpo.agents.engines.parity.PolicyReader`; all ranks must read together."""

    def __init__(self, model: torch.nn.Module, device: str, precision: str):
        self.device, self.precision = torch.device(device), precision
        self._model = model

    def __call__(self, ids_T: Tensor, layout: PackedRows, keep_K: Tensor) -> Tensor:
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        with torch.no_grad(), half:
            return with_gathered_weights(self._model, lambda: forward(self._model, ids_T, layout, keep_K))

    def tensors(self, dtype: str) -> Iterator[tuple[str, Tensor]]:
        return named_tensors(self._model, dtype=dtype_of(dtype))


def local_parts(tensors: Iterable[tuple[str, Tensor]], mesh: DeviceMesh | None) -> dict[str, Tensor]:
    """A copy of tensors on the CPU; shards stay shards.

    mesh: of the CPU; None if nothing is sharded.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            assert mesh is not None
            part = tensor.to_local().detach().to("cpu", copy=True)
            found[name] = DTensor.from_local(
                part, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
            )
        else:
            found[name] = tensor.detach().to("cpu", copy=True)
    return found
