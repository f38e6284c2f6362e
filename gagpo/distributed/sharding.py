"""Sharded weights: each rank holds a part of every parameter, and gathers a layer at a time when it is computed.

Torch's ``fully_shard`` (FSDP2): float32 weights and optimiser states in shards, gathered in what is computed in, and
gradients summed in float32. Arithmetic that one process does in a forward pass runs here inside of :func:`within`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gagpo.agents.engines.adapters import merge
from gagpo.agents.engines.flat.attention import backbone_of, forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.precision import dtype_of
from gagpo.distributed.ranks import Ranks

T = TypeVar("T")

_SCOPE = "_gagpo_scope"

# Log-probabilities and values are views of what was computed; nothing of ours changes them in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class Scope(torch.nn.Module):
    """A sharded unit: a model, and its critic's head where they share a backbone.

    The model's own forward pass has no hooks: the output layer is called apart from the layers below it, and more than
    once where the vocabulary is cut into chunks. The scope's pass holds whatever is computed of one micro-batch.
    """

    def __init__(self, *parts: torch.nn.Module):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def shard(
    model: torch.nn.Module,
    ranks: Ranks,
    precision: str,
    device: str = "cpu",
    head: torch.nn.Module | None = None,
    offload: bool = False,
) -> None:
    """Shard ``model`` in place over all ranks, and the critic's ``head`` that reads its hidden states.

    precision: what the weights are gathered in; they stay what they are, and so do their gradients. A scope of no
    gradients (a reference policy) frees everything after each pass. Every rank has to hold the same weights. offload:
    parts, gradients and what an optimiser holds of them lie in the host's memory; a layer is copied to be computed.
    """
    place = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
    mesh = mesh_of(ranks, device)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = MixedPrecisionPolicy(cast_forward_inputs=False)
    policy = half if precision == "bfloat16" else whole
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=place)
    if head is not None:
        fully_shard(head, mesh=mesh, mp_policy=whole, offload_policy=place)
    scope = Scope(*(part for part in (model, head) if part is not None))
    trained = any(parameter.requires_grad for parameter in scope.parameters())
    fully_shard(scope, mesh=mesh, mp_policy=policy, offload_policy=place, reshard_after_forward=not trained)
    for part in scope.parts:
        object.__setattr__(part, _SCOPE, scope)  # not as a module of its own part


def mesh_of(ranks: Ranks, device: str = "cpu") -> DeviceMesh:
    """All ranks in one row, on the kind of device that ``device`` is of."""
    return init_device_mesh(torch.device(device).type, (ranks.world_size,))


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that are gathered one at a time: those the model names as not to be split, else its longest list."""
    backbone: torch.nn.Module = backbone_of(model)
    names = set(getattr(model, "_no_split_modules", None) or ())
    named = [module for module in backbone.modules() if type(module).__name__ in names]
    if named:
        inner = {id(below) for module in named for below in module.modules() if below is not module}
        return [module for module in named if id(module) not in inner]
    lists = [list(module) for module in backbone.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def within(module: torch.nn.Module, compute: Callable[[], T]) -> T:
    """What ``compute`` gives, with the weights of ``module`` at hand; simply that where they are not sharded.

    What of the result requires gradients must be tensors, alone or in tuples, lists or dicts.
    """
    scope: Scope | None = getattr(module, _SCOPE, None)
    if scope is None:
        return compute()
    result: T = scope(compute)
    if not torch.is_grad_enabled():
        assert isinstance(scope, FSDPModule)
        scope.reshard()  # else the root's weights stay gathered, and an optimiser step would go past them
    return result


def sampled_from(model: torch.nn.Module, ranks: Ranks, dtype: str, whole: bool = True) -> torch.nn.Module:
    """The model for the engine: the policy itself, or, where that will be sharded, another one of the same names.

    whole: a copy that has all weights, to sample from; else it has no numbers and takes no memory.
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
    """A sharded policy as an engine elsewhere needs it (:class:`gagpo.agents.engines.parity.PolicyReader`).

    All ranks read together, each its own tokens.
    """

    def __init__(self, model: torch.nn.Module, device: str, precision: str):
        self.device, self.precision = torch.device(device), precision
        self._model = model

    def __call__(self, ids_T: Tensor, layout: PackedRows, keep_K: Tensor) -> Tensor:
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        with torch.no_grad(), half:
            return within(self._model, lambda: forward(self._model, ids_T, layout, keep_K))

    def tensors(self, dtype: str) -> Iterator[tuple[str, Tensor]]:
        return named_tensors(self._model, dtype=dtype_of(dtype))


def local_parts(tensors: Iterable[tuple[str, Tensor]], mesh: DeviceMesh | None) -> dict[str, Tensor]:
    """A copy of tensors on the CPU, each rank's part as a part; ``mesh``: of the CPU, None where nothing is sharded."""
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
