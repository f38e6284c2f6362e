"""Distributes mini-batches over ranks by tokens, and gathers token columns from them.

Every rank knows all rows and computes the shares of all ranks, without communication.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import Row
from gagpo.learning.packing import MicroBatch, Packing


def rank_batches(rows: Sequence[Row], packing: Packing, ranks: Ranks) -> list[MicroBatch]:
    """This rank's micro-batches of ``rows``.

    All ranks gather sharded weights together and must make the same number of forward passes. Ranks with fewer
    micro-batches read padding, the shortest of ``rows``.
    """
    cuts = [list(packing.cut(shard)) for shard in shard_rows(rows, packing, ranks.world_size)]
    own = [packing.micro_batch(part) for part in cuts[ranks.rank]]
    missing = max(map(len, cuts)) - len(own)
    if not missing:
        return own
    padding = packing.micro_batch([min(rows, key=lambda row: row.length)])
    return [*own, *[replace(padding, padding=True)] * missing]


def shard_rows(rows: Sequence[Row], packing: Packing, world_size: int) -> list[list[Row]]:
    """The rows of each rank: :meth:`Packing.shares`, largest first, each to the rank with the fewest tokens so far."""
    if world_size == 1:
        return [list(rows)]
    loads = [(0, rank) for rank in range(world_size)]
    shards: list[list[Row]] = [[] for _ in range(world_size)]
    sized = [(packing.size(share), share) for share in packing.shares(rows, world_size)]
    for size, share in sorted(sized, key=lambda one: -one[0]):
        load, rank = heapq.heappop(loads)  # ties go to the lower rank
        shards[rank] += share
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
    for made in batches:
        found = read(made.to(device))
        columns = columns or [np.zeros(tokens) for _ in found]
        if made.padding:
            continue
        for column, values in zip(columns, found, strict=True):
            column[made.token_K.numpy()] = values.double().cpu().numpy()
    return [ranks.total(column) for column in columns]
