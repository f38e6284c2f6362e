"""Sharded weights: each rank holds a shard of every parameter, and gathers one layer at a time to compute it.

This is torch's ``fully_shard`` (FSDP2). Weights and optimizer states are float32 shards, weights are gathered in the
compute precision, and gradients are summed in float32. Every forward computation runs inside
:func:`with_gathered_weights`.

Gathering is a collective call, so all ranks must run the same layers in the same order: a rank without tokens of its
own still runs a pass, and a rank that fails makes the others wait until the watch finds out
(:mod:`gagpo.distributed.watch`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gagpo.model.adapters import merge
from gagpo.model.dtypes import dtype_of
from gagpo.model.flat.attention import backbone_of, forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.weights import PolicyTensors

T = TypeVar("T")

_UNIT = "_gagpo_sharded_unit"

# Log-probabilities and values are views of computed tensors; this package never changes them in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class ShardedUnit(torch.nn.Module):
    """What FSDP gathers and frees together: a model, with its critic's head.

    FSDP gathers weights in hooks around a module's ``forward``. Those of the model would not do, because the output
    layer is called separately, and several times if the vocabulary is cut into chunks. So this module's ``forward``
    runs everything that is computed for one micro-batch.
    """

    def __init__(self, *parts: torch.nn.Module):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        for module in parts:
            # A plain attribute: torch would register this module as a submodule of its own part, an endless tree.
            object.__setattr__(module, _UNIT, self)

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def shard(
    model: torch.nn.Module,
    mesh: DeviceMesh | None,
    precision: str,
    head: torch.nn.Module | None = None,
    offload: bool = False,
    unsharded: Unsharded = "layers",
) -> None:
    """Shard ``model`` in place over all ranks, and the critic's ``head`` that reads its hidden states.

    Every rank must have the same weights. A model without gradients (a reference policy) frees all gathered weights
    after each pass.

    mesh: of all ranks on the device of the weights; None for a process that trains alone, which shards nothing.
    precision: of gathered weights, by name; shards and gradients keep theirs.
    offload: keep shards, gradients and optimizer states in host memory, and copy a layer when it is computed.
    unsharded: ``all`` to keep the layers of a forward pass gathered for its backward pass.
    """
    if mesh is None:
        return
    # Pinned memory is copied to a GPU while it computes; without a GPU there is nothing to pin it for.
    offload_policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    unit_precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    policy = half if precision == "bfloat16" else unit_precision
    for block in blocks_of(model):
        # Freed layers are gathered again in the backward pass: memory is paid with half as many bytes more.
        free = unsharded != "all"
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, reshard_after_forward=free)
    if head is not None:
        fully_shard(head, mesh=mesh, mp_policy=unit_precision, offload_policy=offload_policy)
    unit = ShardedUnit(*(module for module in (model, head) if module is not None))
    trained = any(parameter.requires_grad for parameter in unit.parameters())
    fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, reshard_after_forward=not trained)


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


def with_gathered_weights(module: torch.nn.Module, compute: Callable[[], T]) -> T:
    """The result of ``compute``, run while the weights of ``module`` can be gathered if they are sharded.

    All ranks must call it together. Results that require gradients must be tensors, alone or in tuples, lists or dicts:
    FSDP hooks their backward pass, and finds them in no other container.
    """
    unit: ShardedUnit | None = getattr(module, _UNIT, None)
    if unit is None:
        return compute()
    result: T = unit(compute)
    if not torch.is_grad_enabled():
        # The backward pass frees what the unit's forward pass gathered. Without one the weights would stay gathered,
        # and the next optimizer step, which changes the shards, would not reach them.
        for gathered in _sharded_modules(unit):
            gathered.reshard()
    return result


Unsharded = Literal["auto", "least", "layers", "gradients", "all"]
"""What a rank holds unsharded while it accumulates gradients, see ``training.unsharded``; ``auto`` is ``layers`` here.

From the least memory to the fewest bytes moved.
"""


def begin_micro_batch(module: torch.nn.Module, unsharded: Unsharded, last: bool) -> None:
    """Choose which collective calls the next forward and backward pass of ``module`` make; all ranks choose alike.

    last: whether it is the last one before the optimizer step, which needs reduced gradients and sharded weights.
    """
    unit: ShardedUnit | None = getattr(module, _UNIT, None)
    if unit is None:
        return
    assert isinstance(unit, FSDPModule)
    # Gradients add up: their sum is reduced once in place of every summand.
    unit.set_requires_gradient_sync(last or unsharded not in ("gradients", "all"))
    # Weights change in the step alone, so what one micro-batch has gathered serves the next ones.
    unit.set_reshard_after_backward(last or unsharded != "all")


def _sharded_modules(unit: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in unit.modules() if isinstance(module, FSDPModule)]


def unsharded_copy(model: torch.nn.Module, dtype: str, with_weights: bool = True) -> torch.nn.Module:
    """A copy of the policy for the engine, made before the policy is sharded.

    with_weights: copy the weights, to sample from; else the copy is on the device ``meta`` and takes no memory. Of a
        policy that has no weights yet, the copy has real buffers then, see :func:`gagpo.model.slices.fill_copy`.
    """
    replacements: dict[int, object] = {}  # deepcopy takes these instead of copying
    # Merging adds an adapter to its weights, so both must be on one device.
    if not with_weights or any(parameter.is_meta for parameter in model.parameters()):
        for tensor in model.parameters():
            replacements[id(tensor)] = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
    if not with_weights:
        replacements |= {id(tensor): torch.empty_like(tensor, device="meta") for tensor in model.buffers()}
    return merge(copy.deepcopy(model, replacements)).to(dtype_of(dtype)).requires_grad_(False)


class ShardedReader:
    """A sharded policy as a :class:`gagpo.agents.engines.parity.PolicyReader`; all ranks must read together."""

    def __init__(self, model: torch.nn.Module, device: str, precision: str):
        self.device = torch.device(device)
        self.precision = precision
        self._model = model

    def __call__(self, ids_T: Tensor, layout: PackedRows, keep_K: Tensor) -> Tensor:
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        with torch.no_grad(), half:
            return with_gathered_weights(self._model, lambda: forward(self._model, ids_T, layout, keep_K))

    def tensors(self, dtype: str) -> PolicyTensors:
        return PolicyTensors(self._model, dtype_of(dtype))


def local_parts(tensors: Iterable[tuple[str, Tensor]], mesh: DeviceMesh | None) -> dict[str, Tensor]:
    """A copy of tensors on the CPU; shards stay shards.

    mesh: of all ranks on the CPU; None if nothing is sharded.
    """
    shards: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            assert mesh is not None
            local = tensor.to_local().detach().to("cpu", copy=True)
            shards[name] = DTensor.from_local(
                local, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
            )
        else:
            shards[name] = tensor.detach().to("cpu", copy=True)
    return shards
