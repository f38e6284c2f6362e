"""A mini-batch shared among the ranks by tokens, and columns put together from all ranks.

Every rank knows all rows, so each computes the shares of all ranks and nothing is sent.
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
    """This rank's micro-batches of ``rows``; of one rank, all of them.

    Sharded weights are gathered by all ranks together, layer after layer. So all make as many forward passes: who has
    fewer micro-batches than another reads padding after its own, the shortest of ``rows``.
    """
    cuts = [list(packing.cut(shard)) for shard in shard_rows(rows, packing, ranks.world_size)]
    own = [packing.micro_batch(part) for part in cuts[ranks.rank]]
    missing = max(map(len, cuts)) - len(own)
    if not missing:
        return own
    padding = packing.micro_batch([min(rows, key=lambda row: row.length)])
    return [*own, *[replace(padding, padding=True)] * missing]


def shard_rows(rows: Sequence[Row], packing: Packing, env: int) -> list[list[Row]]:
    """The rows of each rank: the largest share first, each to the rank with the fewest tokens so far.

    No rank reads more tokens than another by more than the largest of :meth:`Packing.shares`.
    """
    if env == 1:
        return [list(rows)]
    loads = [(0, rank) for rank in range(env)]
    shards: list[list[Row]] = [[] for _ in range(env)]
    sized = [(packing.size(share), share) for share in packing.shares(rows, env)]
    for size, share in sorted(sized, key=lambda one: -one[0]):
        load, rank = heapq.heappop(loads)  # ties go to the lower rank, on every rank alike
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
    """What ``read`` finds of the response tokens of all ranks' micro-batches, float64[tokens] for each thing it finds.

    Tokens stand in the order of the turns; those in no micro-batch are 0.
    """
    columns: list[np.ndarray] = []
    for made in batches:
        found = read(made.to(device))
        columns = columns or [np.zeros(tokens) for _ in found]
        if made.padding:  # read only because the other ranks read
            continue
        for column, values in zip(columns, found, strict=True):
            column[made.token_K.numpy()] = values.double().cpu().numpy()
    return [ranks.total(column) for column in columns]
