"""Compute with a model whose weights may be sharded over several processes.

:mod:`gagpo.distributed.sharding` shards; the code here also runs, and does nothing, in a process that trains alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")

_UNIT = "_gagpo_sharded_unit"


class ShardedUnit(torch.nn.Module):
    """What FSDP gathers and frees together: a model, with its critic's head.

    FSDP gathers weights in hooks around a module's ``forward``. Those of the model would not do, because the output
    layer is called separately, and several times if the vocabulary is cut into chunks. So this module's ``forward``
    runs everything that is computed for one micro-batch.
    """

    def __init__(self, *parts: torch.nn.Module):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        for part in parts:
            object.__setattr__(part, _UNIT, self)  # not registered as a submodule of its own part

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


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
        assert isinstance(unit, FSDPModule)
        unit.reshard()
    return result
