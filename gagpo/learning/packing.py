"""Micro-batches: rows on one token axis without padding, or as trees that share prefixes.

Shape suffixes: K response tokens, U their predictions, T flat tokens of a micro-batch, L tokens of a row.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from gagpo.distributed.ranks import Ranks
from gagpo.learning.batch import Row
from gagpo.model.flat.attention import is_flat
from gagpo.model.flat.packed import PackedRows, PackedTrees, build_branches, common_prefix, prefix_order
from gagpo.objectives import Layout
from gagpo.settings import RunSettings

SIZES = 256
"""Numbers of flat tokens and predictions are rounded up to multiples of this."""
REACH = 4
"""Most attention keys of a tree, in multiples of :attr:`Packing.tokens`, to bound memory."""


@dataclass(frozen=True)
class MicroBatch:
    """The tokens of one forward pass, and the columns of its response tokens. Made on the CPU.

    ids_T: the tokens read.
    packed: the attention layout.
    keep_U: flat position whose logits predict a token.
    target_U: the predicted token.
    temperature_U: its sampling temperature; None if all are 1.
    of_K: the prediction of each response token; None if they are one to one.
    turn_K, token_K: turn and index of each response token in the batch.
    group_K: task group of each response token.
    logprob_K: the engine's log-probability.
    layout: the actions and rows of the response tokens.
    padding: whether it is read only to give all ranks the same number of passes.

    Columns of a training step, float32[K], set by :func:`gagpo.learning.loss.with_columns`:

    old_logprob_K: denominator of the ratios.
    advantage_K: the advantage.
    weight_K: importance weight of the correction.
    old_value_K: the critic's value when the batch was sampled.
    return_K: the critic's target.
    first_K: int64, indices of the trained values; None for all.
    """

    ids_T: Tensor
    packed: PackedTrees
    keep_U: Tensor
    target_U: Tensor
    temperature_U: Tensor | None
    of_K: Tensor | None
    turn_K: Tensor
    token_K: Tensor
    group_K: Tensor
    logprob_K: Tensor
    layout: Layout
    old_logprob_K: Tensor
    advantage_K: Tensor | None = None
    weight_K: Tensor | None = None
    old_value_K: Tensor | None = None
    return_K: Tensor | None = None
    first_K: Tensor | None = None
    padding: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens read, without rounding."""
        return self.packed.own

    def each(self, value_U: Tensor) -> Tensor:
        """Values of response tokens, ``(K, ...)``, from values of predictions, ``(U, ...)``."""
        return value_U if self.of_K is None else value_U.index_select(0, self.of_K)

    def to(self, device: torch.device | str) -> MicroBatch:
        """Copy to ``device`` without waiting for it."""
        if torch.device(device).type == "cpu":
            return self
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        rest = {"packed": self.packed.to(device), "layout": self.layout.to(device)}
        return replace(self, **moved, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Packing:
    """How rows become micro-batches. Changes memory and speed, but not the result.

    tokens: limit of a forward pass of several rows, counted as if padded to the longest; of trees, tokens read.
    trees: read common prefixes once; requires a model with flat attention.
    rounded: round sizes up, because half-precision kernels on a CPU are compiled for each size.
    """

    tokens: int = 16384
    trees: bool = False
    rounded: bool = False

    def micro_batches(self, rows: Sequence[Row]) -> Iterator[MicroBatch]:
        """Micro-batches of rows with similar lengths, or with trees, similar prefixes."""
        yield from map(self.micro_batch, self.cut(rows))

    def cut(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """The rows of each micro-batch."""
        yield from self._cut_trees(rows) if self.trees else self._cut_lengths(rows)

    def _cut_lengths(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        by_length = sorted(rows, key=lambda row: row.length)
        begin = 0
        while begin < len(by_length):
            end = begin + 1
            while end < len(by_length) and (end + 1 - begin) * by_length[end].length <= self.tokens:
                end += 1
            yield by_length[begin:end]
            begin = end

    def _cut_trees(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        part: list[Row] = []
        read = reach = 0
        for place in prefix_order([row.read_L for row in rows]):
            row = rows[place]
            # A row adds the tokens that it does not share with the previous one.
            own = row.length - common_prefix(part[-1].read_L, row.read_L) if part else row.length
            if part and (read + own > self.tokens or reach + row.length > REACH * self.tokens):
                yield part
                part, read, reach, own = [], 0, 0, row.length
            part.append(row)
            read, reach = read + own, reach + row.length
        if part:
            yield part

    def shares(self, rows: Sequence[Row], world_size: int) -> list[list[Row]]:
        """The units that are distributed over ranks: rows, or trees of a group's rows.

        A tree larger than half a rank's share of all tokens is halved, along the sorted order.
        """
        if not self.trees:
            return [[row] for row in rows]
        by_group = sorted(rows, key=lambda row: row.group)
        groups = [list(part) for _, part in itertools.groupby(by_group, key=lambda row: row.group)]
        fair = sum(map(self.size, groups)) / (2 * world_size)
        shares: list[list[Row]] = []
        while groups:
            group = groups.pop()
            if len(group) == 1 or self.size(group) <= fair:
                shares.append(group)
                continue
            ordered = [group[place] for place in prefix_order([row.read_L for row in group])]
            groups += [ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]]
        return shares

    def size(self, rows: Sequence[Row]) -> int:
        """Number of tokens that these rows add to a forward pass."""
        if not self.trees:
            return sum(row.length for row in rows)
        ordered = [rows[place].read_L for place in prefix_order([row.read_L for row in rows])]
        return sum(map(len, ordered)) - sum(common_prefix(a, b) for a, b in itertools.pairwise(ordered))

    def micro_batch(self, rows: Sequence[Row]) -> MicroBatch:
        """Lay the rows on the flat token axis."""
        ids_T, packed, paths = self._lay_out(rows)
        counts = [len(row.place_K) for row in rows]
        keep_K = np.concatenate([path_L[row.place_K - 1] for row, path_L in zip(rows, paths, strict=True)])
        target_K = np.concatenate([row.ids[row.place_K] for row in rows])
        temperature_K = np.repeat([row.temperature for row in rows], counts).astype(np.float32)

        # One prediction for all rows of a tree with the same token at the same position.
        of_K: np.ndarray | None = None
        if self.trees and (temperature_K == temperature_K[0]).all():
            _, first_U, of_K = np.unique(keep_K * 2**32 + target_K, return_index=True, return_inverse=True)
            keep_K, target_K, temperature_K = keep_K[first_U], target_K[first_U], temperature_K[first_U]
        if self.rounded:
            of_K = np.arange(len(keep_K)) if of_K is None else of_K
            keep_K, target_K, temperature_K = (_rounded_up(x) for x in (keep_K, target_K, temperature_K))

        def as_long(values: np.ndarray | Sequence[np.ndarray]) -> Tensor:
            return torch.as_tensor(values if isinstance(values, np.ndarray) else np.concatenate(values)).long()

        turn_K, row_K = as_long([row.turn_K for row in rows]), as_long(np.repeat(np.arange(len(rows)), counts))
        logprob_K = torch.as_tensor(np.concatenate([row.logprob_K for row in rows]))
        return MicroBatch(
            ids_T=as_long(ids_T),
            packed=packed,
            keep_U=as_long(keep_K),
            target_U=as_long(target_K),
            temperature_U=torch.as_tensor(temperature_K) if (temperature_K != 1).any() else None,
            of_K=None if of_K is None else as_long(of_K),
            turn_K=turn_K,
            token_K=as_long([row.token_K for row in rows]),
            group_K=as_long(np.repeat([row.group for row in rows], counts)),
            logprob_K=logprob_K,
            layout=Layout.of(turn_K, row_K),
            old_logprob_K=logprob_K,
        )

    def _lay_out(self, rows: Sequence[Row]) -> tuple[np.ndarray, PackedTrees, list[np.ndarray]]:
        """Tokens, the attention layout, and the flat positions of each row's tokens."""
        ids_T, branches = build_branches([row.read_L for row in rows], share=self.trees)
        paths = [branch.path_L for branch in branches]
        if not (self.trees or self.rounded):  # models without flat attention
            return ids_T, PackedRows([row.length for row in rows]), paths
        read = len(ids_T)
        ids_T = _rounded_up(ids_T) if self.rounded else ids_T
        return ids_T, PackedTrees(branches, blank=len(ids_T) - read, rounded=self.rounded), paths


def _rounded_up(values: np.ndarray) -> np.ndarray:
    """Pad with the first value to a multiple of :data:`SIZES`."""
    return np.concatenate([values, np.full(-len(values) % SIZES, values[0])])


def packing_of(model: torch.nn.Module, settings: RunSettings) -> Packing:
    """The packing of a run: trees if the model has flat attention."""
    training, flat = settings.training, is_flat(model)
    half_on_cpu = torch.device(settings.device).type == "cpu" and training.dtype == "bfloat16"
    return Packing(training.microbatch_tokens, flat, half_on_cpu and flat)


# Distribution over ranks. Each knows all rows and computes the shares of all, without communication. ------------------


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
