"""The rows of an optimiser step divided over ranks, and columns gathered from all of them.

Each rank has all rows and computes the parts of all ranks. That costs each rank some arithmetic and saves a collective
call: the division is a function of the rows, so all ranks come to the same one.

Rows are sorted by size before they are dealt out, because a step takes as long as its slowest rank.
Shape suffixes: K response tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.data import Row
from gagpo.distributed.ranks import Ranks
from gagpo.learning.packing import Packing
from gagpo.model.microbatch import MicroBatch


def rank_batches(rows: Sequence[Row], packing: Packing, ranks: Ranks) -> list[MicroBatch]:
    """This rank's micro-batches of ``rows``.

    All ranks gather sharded weights together and must make the same number of forward passes. Ranks with fewer
    micro-batches read padding, the shortest of ``rows``.
    """
    parts_of_ranks = [list(packing.cut(shard)) for shard in shard_rows(rows, packing, ranks.world_size)]
    batches = [packing.micro_batch(rows_of_batch) for rows_of_batch in parts_of_ranks[ranks.rank]]
    missing = max(map(len, parts_of_ranks)) - len(batches)
    if missing:
        # The shortest row costs least. Its loss is 0 times its outputs, so that a backward pass runs too.
        padding = packing.micro_batch([min(rows, key=lambda row: row.length)])
        batches += [replace(padding, padding=True)] * missing
    return batches


def shard_rows(rows: Sequence[Row], packing: Packing, world_size: int) -> list[list[Row]]:
    """The rows of each rank: :meth:`Packing.units`, largest first, each to the rank with the fewest tokens so far."""
    if world_size == 1:
        return [list(rows)]
    loads = [(0, rank) for rank in range(world_size)]
    shards: list[list[Row]] = [[] for _ in range(world_size)]
    sized_units = [(packing.size(unit), unit) for unit in packing.units(rows, world_size)]
    for size, unit in sorted(sized_units, key=lambda sized_unit: -sized_unit[0]):
        load, rank = heapq.heappop(loads)  # ties go to the lower rank
        shards[rank] += unit
        heapq.heappush(loads, (load + size, rank))
    return shards


@torch.no_grad()
def token_columns(
    read: Callable[[MicroBatch], Sequence[Tensor]],
    batches: Iterable[MicroBatch],
    tokens: int,
    device: torch.device | str,
    ranks: Ranks,
) -> list[np.ndarray]:
    """The columns that ``read`` returns, gathered from all ranks' micro-batches, float64[tokens] each.

    Tokens that are not in any micro-batch are 0.
    """
    columns: list[np.ndarray] = []
    for batch in batches:
        values = read(batch.to(device))
        columns = columns or [np.zeros(tokens) for _ in values]
        if batch.padding:
            continue
        for column, value_K in zip(columns, values, strict=True):
            column[batch.token_K.numpy()] = value_K.double().cpu().numpy()
    # Each token is in one rank's micro-batches and 0 on the others, so the sum over ranks has all.
    return [ranks.total(column) for column in columns]
