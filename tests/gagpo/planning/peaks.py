"""Measure the peak of torch's allocations on a CPU in an update of a small model, in one or several processes.

python -m tests.gagpo.planning.peaks OUT CASE...     # one rank, with torchrun's variables; CASE: see `Case`
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.allocated import Allocated
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import build_rows
from gagpo.distributed.ranks import Ranks, joined
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model import adapters
from gagpo.model.dtypes import autocast
from gagpo.model.networks import Networks
from gagpo.model.sharding import shard
from gagpo.sft.small_model import ModelShape, create, train_tokenizer
from tests.gagpo.learning.test_batch import conversation

SIZES = {
    "small": ModelShape(layers=2, width=64, heads=4, key_value_heads=2, feed_forward=128, context=512),
    "middle": ModelShape(layers=4, width=128, heads=4, key_value_heads=1, feed_forward=384, context=512),
    "wide": ModelShape(layers=3, width=256, heads=8, key_value_heads=8, feed_forward=512, context=512),
}
ROWS, PROMPT, RESPONSE = 8, 96, 32


@dataclass(frozen=True)
class Case:
    """base: of an adapter of rank 8, "" without one."""

    size: str
    checkpointing: bool = False
    precision: str = "float32"
    base: str = ""

    @classmethod
    def of(cls, words: str) -> Case:
        return cls(**json.loads(words))

    def words(self) -> str:
        return json.dumps(asdict(self))


class WithoutProducts(TorchDispatchMode):
    """Gives zeros of the right shape in place of matrix products.

    Memory does not depend on the numbers, and in bfloat16 products take nearly all of the time on a CPU without
    instructions for them.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            remaining, right = args
            return remaining.new_zeros(*remaining.shape[:-1], right.shape[-1])
        if func is torch.ops.aten.addmm.default:
            _, remaining, right = args
            return remaining.new_zeros(remaining.shape[0], right.shape[1])
        return func(*args, **(kwargs or {}))


def model_of(case: Case) -> torch.nn.Module:
    model = create(SIZES[case.size], train_tokenizer(["You stand at 12."], 300), 0)
    if case.base:
        adapters.inject(model, 8, 8.0, adapters.ALL_LINEAR)
        if case.base == "bfloat16":
            adapters.halve_base(model)
    if case.checkpointing:
        model.gradient_checkpointing_enable()
    return model


def held(model: torch.nn.Module) -> int:
    """Bytes of this rank's parameters."""
    return sum(getattr(p, "_local_tensor", p).nbytes for p in model.parameters())


def measured(case: Case, ranks: Ranks | None = None) -> int:
    """Peak bytes of two optimiser steps, weights included."""
    ranks, model = ranks or Ranks(), model_of(case)
    if not ranks.alone:
        shard(model, ranks.mesh(), case.precision)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    rng = np.random.default_rng(0)
    count = 2 * ROWS * ranks.world_size
    episodes = [conversation((rng.integers(0, 250, PROMPT), rng.integers(0, 250, RESPONSE))) for _ in range(count)]
    rows = build_rows(episodes)
    credit = Credit(np.ones(count), np.full(count, RESPONSE))
    packing = Packing(ROWS * (PROMPT + RESPONSE))
    updater = Updater(
        Networks(model, autocast=lambda: autocast("cpu", case.precision)),
        optimizer,
        load_algorithm("cispo"),
        UpdateSettings(packing=packing),
        ranks,
    )
    before = held(model)
    with WithoutProducts(), Allocated() as counted:  # type: ignore[no-untyped-call]
        updater.update(rows, credit, rng)
        updater.update(rows, credit, rng)
    return counted.peak + before


def main() -> None:
    out, *cases = sys.argv[1:]
    with joined() as ranks:
        results = [measured(Case.of(cas), ranks) for cas in cases]
        if ranks.first:
            Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
