"""A mini-batch shared among the ranks by its tokens, and what each rank reads of it put together again.

Every rank knows all rows, so that each computes what all of them get and nothing has to be sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import MicroBatch, Row, cut, micro_batch, micro_batches


def rank_batches(rows: Sequence[Row], tokens: int, ranks: Ranks) -> list[MicroBatch]:
    """This rank's micro-batches of ``rows``, each of at most ``tokens`` padded tokens; of one rank, all of them.

    Sharded weights are gathered by all ranks together, layer after layer. So all make as many forward passes: who has
    fewer micro-batches than another reads the shortest row as padding, after its own.
    """
    if ranks.alone:
        return list(micro_batches(rows, tokens))
    shards = shard_rows(rows, ranks.world)
    counts = [sum(1 for _ in cut(shard, tokens)) for shard in shards]
    padding = replace(micro_batch([min(rows, key=lambda row: row.length)]), padding=True)
    return [*micro_batches(shards[ranks.rank], tokens), *[padding] * (max(counts) - counts[ranks.rank])]


def shard_rows(rows: Sequence[Row], world: int) -> list[list[Row]]:
    """The rows of each rank, in their order: the longest first, each to whoever has the fewest tokens so far.

    No rank has more tokens than another by more than the longest row.
    """
    loads = [(0, rank) for rank in range(world)]
    shards: list[list[int]] = [[] for _ in range(world)]
    for place in sorted(range(len(rows)), key=lambda place: -rows[place].length):
        load, rank = heapq.heappop(loads)  # ties go to the lower rank, on every rank alike
        shards[rank].append(place)
        heapq.heappush(loads, (load + rows[place].length, rank))
    return [[rows[place] for place in sorted(shard)] for shard in shards]


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
        if made.padding:  # read because the other ranks read, and of no further use
            continue
        for column, values in zip(columns, found, strict=True):
            column[made.token_K.numpy()] = values.double().cpu().numpy()
    return [ranks.total(column) for column in columns]
