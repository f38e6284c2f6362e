"""Dealing a mini-batch out over the ranks by its tokens, with as many forward passes on each.

Every rank knows all rows, so that each computes what all of them get and nothing has to be sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import MicroBatch, Row, cut, micro_batch, micro_batches


@dataclass(frozen=True)
class Share:
    """What one rank reads of a mini-batch.

    micros: its micro-batches. blanks: passes of no weight after them, until as many have been made as on the rank with
    the most: sharded weights are gathered by all ranks together, layer after layer.
    """

    micros: list[MicroBatch]
    blanks: list[MicroBatch] = field(default_factory=list)

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self.micros)

    @property
    def tokens(self) -> int:
        return sum(micro.tokens for micro in self.micros)


def share(rows: Sequence[Row], tokens: int, ranks: Ranks) -> Share:
    """This rank's share of ``rows`` in micro-batches of at most ``tokens`` padded tokens; of one rank, all of them."""
    if ranks.alone:
        return Share(list(micro_batches(rows, tokens)))
    parts = deal(rows, ranks.world)
    counts = [sum(1 for _ in cut(part, tokens)) for part in parts]
    missing = max(counts) - counts[ranks.rank]
    blanks = [micro_batch([min(rows, key=lambda row: row.length)])] * missing if missing else []
    return Share(list(micro_batches(parts[ranks.rank], tokens)), blanks)


def deal(rows: Sequence[Row], world: int) -> list[list[Row]]:
    """The rows of each rank, in their order: the longest first, each to whoever has the fewest tokens so far.

    No rank has more tokens than another by more than the longest row.
    """
    loads = [(0, rank) for rank in range(world)]
    parts: list[list[int]] = [[] for _ in range(world)]
    for place in sorted(range(len(rows)), key=lambda place: -rows[place].length):
        load, rank = heapq.heappop(loads)
        parts[rank].append(place)
        heapq.heappush(loads, (load + rows[place].length, rank))
    return [[rows[place] for place in sorted(part)] for part in parts]
