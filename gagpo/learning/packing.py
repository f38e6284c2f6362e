"""How rows are divided: into mini-batches of an optimiser step, and those into micro-batches of a forward pass.

A micro-batch has its rows one after the other on one token axis, without padding, or as trees that share prefixes.

Rows differ in length, and padding is computed for nothing. Rows of a task group begin with the same prompt, so a tree
that reads a prefix once does a fraction of the work. Nothing of this may change a result: every micro-batch divides by
the counts of its mini-batch. Shape suffixes: K response tokens, U their predictions, T flat tokens of a micro-batch, L
tokens of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gagpo.data import Row
from gagpo.model.chosen_format import native_bfloat16
from gagpo.model.flat.attention import is_flat
from gagpo.model.flat.packed import PackedRows, PackedTrees, build_branches, common_prefix, prefix_order
from gagpo.model.microbatch import MicroBatch
from gagpo.objectives import Layout, Normaliser
from gagpo.settings import RunSettings

SIZES = 256
"""Numbers of flat tokens and predictions are rounded up to multiples of this, where :attr:`Packing.rounded`.

A batch of thousands of tokens grows by a few percent, and few different sizes remain to compile kernels for.
"""
REACH = 4
"""Largest number of attention keys of a tree, in multiples of :attr:`Packing.tokens`.

A tree reads a shared prefix once, but attention gathers its keys for every row: without this limit many short rows on
a long prefix would take far more memory than their tokens suggest.
"""


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
        if self.trees:
            return self._cut_trees(rows)
        return self._cut_lengths(rows)

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
        tree: list[Row] = []
        read = 0
        keys = 0
        for index in prefix_order([row.read_L for row in rows]):
            row = rows[index]
            # In this order a row shares most with the previous one, and adds the tokens that it does not share.
            new_tokens = row.length
            if tree:
                new_tokens -= common_prefix(tree[-1].read_L, row.read_L)
            if tree and (read + new_tokens > self.tokens or keys + row.length > REACH * self.tokens):
                yield tree
                tree = []
                read = 0
                keys = 0
                new_tokens = row.length
            tree.append(row)
            read += new_tokens
            keys += row.length
        if tree:
            yield tree

    def units(self, rows: Sequence[Row], world_size: int) -> list[list[Row]]:
        """The units that are distributed over ranks: rows, or trees of a group's rows.

        A tree larger than half a rank's part of all tokens is halved along the sorted order, so that one large group
        does not keep the other ranks waiting.
        """
        if not self.trees:
            return [[row] for row in rows]
        by_group = sorted(rows, key=lambda row: row.group)
        groups = [list(group_rows) for _, group_rows in itertools.groupby(by_group, key=lambda row: row.group)]
        max_size = sum(map(self.size, groups)) / (2 * world_size)
        units: list[list[Row]] = []
        while groups:
            group = groups.pop()
            if len(group) == 1 or self.size(group) <= max_size:
                units.append(group)
                continue
            ordered = [group[index] for index in prefix_order([row.read_L for row in group])]
            groups += [ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]]
        return units

    def size(self, rows: Sequence[Row]) -> int:
        """Number of tokens that these rows add to a forward pass."""
        if not self.trees:
            return sum(row.length for row in rows)
        ordered = [rows[index].read_L for index in prefix_order([row.read_L for row in rows])]
        return sum(map(len, ordered)) - sum(common_prefix(a, b) for a, b in itertools.pairwise(ordered))

    def micro_batch(self, rows: Sequence[Row]) -> MicroBatch:
        """Lay the rows on the flat token axis."""
        ids_T, packed, paths = self._lay_out(rows)
        counts = [len(row.position_K) for row in rows]
        keep_K = np.concatenate([path_L[row.position_K - 1] for row, path_L in zip(rows, paths, strict=True)])
        target_K = np.concatenate([row.ids[row.position_K] for row in rows])
        temperature_K = np.repeat([row.temperature for row in rows], counts).astype(np.float32)

        # One prediction for all rows of a tree with the same token at the same position: the logits of a vocabulary
        # are the largest tensors of a small model. Position and token are one integer key.
        prediction_K: np.ndarray | None = None
        if self.trees and (temperature_K == temperature_K[0]).all():
            _, first_U, prediction_K = np.unique(keep_K * 2**32 + target_K, return_index=True, return_inverse=True)
            keep_K = keep_K[first_U]
            target_K = target_K[first_U]
            temperature_K = temperature_K[first_U]
        if self.rounded:
            # The added predictions repeat the first one, and no response token reads them: they have no gradient.
            if prediction_K is None:
                prediction_K = np.arange(len(keep_K))
            keep_K = _rounded_up(keep_K)
            target_K = _rounded_up(target_K)
            temperature_K = _rounded_up(temperature_K)

        turn_K = _as_long(np.concatenate([row.turn_K for row in rows]))
        row_K = _as_long(np.repeat(np.arange(len(rows)), counts))
        logprob_K = torch.as_tensor(np.concatenate([row.logprob_K for row in rows]))
        return MicroBatch(
            ids_T=_as_long(ids_T),
            packed=packed,
            keep_U=_as_long(keep_K),
            target_U=_as_long(target_K),
            temperature_U=torch.as_tensor(temperature_K) if (temperature_K != 1).any() else None,
            prediction_K=None if prediction_K is None else _as_long(prediction_K),
            turn_K=turn_K,
            token_K=_as_long(np.concatenate([row.token_K for row in rows])),
            group_K=_as_long(np.repeat([row.group for row in rows], counts)),
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
        tokens = len(ids_T)
        if self.rounded:
            ids_T = _rounded_up(ids_T)
        return ids_T, PackedTrees(branches, blank=len(ids_T) - tokens, rounded=self.rounded), paths


def _as_long(values: np.ndarray) -> Tensor:
    """As torch's type of indices."""
    return torch.as_tensor(values).long()


def _rounded_up(values: np.ndarray) -> np.ndarray:
    """Pad with the first value to a multiple of :data:`SIZES`."""
    return np.concatenate([values, np.full(-len(values) % SIZES, values[0])])


def packing_of(model: torch.nn.Module, settings: RunSettings) -> Packing:
    """The packing of a run: trees if the model has flat attention."""
    training = settings.training
    flat = is_flat(model)
    # oneDNN compiles a kernel for every size of a product in bfloat16, if the CPU has instructions for it. Elsewhere a
    # loop takes its place, and rounding would only add tokens: 9 to 44 % of the work of short rows.
    half_on_cpu = torch.device(settings.device).type == "cpu" and training.dtype == "bfloat16"
    compiles = half_on_cpu and native_bfloat16("cpu")[0]
    return Packing(training.microbatch_tokens, trees=flat, rounded=compiles and flat)


# Mini-batches ---------------------------------------------------------------------------------------------------------


def normaliser_of(rows: Sequence[Row]) -> Normaliser:
    """The counts that means over these rows divide by."""
    turns = sum(1 + int(np.count_nonzero(np.diff(row.turn_K))) for row in rows)
    return Normaliser(sum(len(row.turn_K) for row in rows), turns, len(rows))


def mini_batches(rows: Sequence[Row], count: int, rng: np.random.Generator) -> Iterator[list[Row]]:
    """Split the rows at random into ``count`` parts with nearly equal numbers of task groups.

    With fewer groups than parts, rows are split individually, into at most one part per row.
    """
    group_R = np.asarray([row.group for row in rows])
    groups = np.unique(group_R)
    if len(groups) < count:
        groups = np.arange(len(rows))
        group_R = groups
    # Whole groups stay together: their rows share prefixes, and their advantages are relative to each other.
    for chosen_groups in np.array_split(rng.permutation(groups), min(count, len(groups))):
        yield [rows[index] for group in chosen_groups for index in np.flatnonzero(group_R == group)]
