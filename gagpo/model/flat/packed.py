"""Rows of a micro-batch on one token axis: one after the other, or as trees that share prefixes.

Sorting rows lexicographically makes the tree: each row shares its longest prefix with the one before it, and no
pointers are needed. A branch is an array of positions, so attention along it is a gather of keys.
Shape suffixes: T flat tokens, B rows, L positions of a row, H heads, D head size.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gagpo.model.flat.kernels import PLAIN, CausalAttention, LayerKind, attend_ragged, bucket, similar_runs

LARGEST_HEAD = 256  # of the kernel for rows of any length
SIZES = 32  # multiple that queries and keys of a row are padded to if sizes are rounded


@dataclass(frozen=True)
class Branch:
    """A row's path along the flat axis.

    path_L: index of each token.
    new: number of last tokens that only this row has; those before are shared with an earlier row.
    """

    path_L: np.ndarray
    new: int

    @property
    def before(self) -> int:
        """Tokens that are shared with an earlier row."""
        return len(self.path_L) - self.new

    @property
    def new_places(self) -> np.ndarray:
        return self.path_L[self.before :]


def prefix_order(rows: Sequence[np.ndarray]) -> list[int]:
    """Indices of the rows in lexicographic order, in which each shares its longest prefix with a neighbour."""
    # Big-endian bytes compare as the numbers do, and one comparison of bytes is faster than one of arrays.
    return sorted(range(len(rows)), key=lambda place: rows[place].astype(">i4").tobytes())


def common_prefix(row: np.ndarray, other_row: np.ndarray) -> int:
    """Length of the common prefix of two rows."""
    length = min(len(row), len(other_row))
    differs = np.flatnonzero(row[:length] != other_row[:length])
    return int(differs[0]) if len(differs) else length


def build_branches(rows: Sequence[np.ndarray], share: bool = True) -> tuple[np.ndarray, list[Branch]]:
    """The tokens of all rows with common prefixes once, and each row's branch. share: False for rows in order."""
    chunks: list[np.ndarray] = []
    branches: dict[int, Branch] = {}
    previous = np.zeros(0, np.int32)
    path_L = np.zeros(0, np.int64)
    count = 0
    for index in prefix_order(rows) if share else range(len(rows)):
        row = rows[index]
        before = common_prefix(previous, row) if share else 0
        new = len(row) - before
        path_L = np.concatenate([path_L[:before], np.arange(count, count + new)])
        branches[index] = Branch(path_L, new)
        chunks.append(row[before:])
        previous = row
        count += new
    return np.concatenate(chunks), [branches[index] for index in range(len(rows))]


class PackedTrees:
    """Causal attention along the branches of prefix trees.

    All layers except attention compute shared tokens once. Attention takes a row's branch as keys and its own tokens as
    queries. Gradients of shared tokens are sums over their rows, so the result is exact.

    blank: padding tokens at the end of the flat axis.
    rounded: pad sizes to multiples of :data:`SIZES`, for kernels that are compiled for every size.
    """

    def __init__(
        self, branches: Sequence[Branch], blank: int = 0, rounded: bool = False, device: torch.device | str = "cpu"
    ):
        self.num_tokens = sum(branch.new for branch in branches)
        tokens = self.num_tokens + blank
        position_T = np.zeros(tokens, np.int64)
        for branch in branches:
            position_T[branch.new_places] = np.arange(branch.before, len(branch.path_L))
        # By size, so that branches of similar size are neighbours and little is padded.
        queried = (branch for branch in branches if branch.new)
        self._branches = sorted(queried, key=lambda branch: (branch.new, len(branch.path_L)))
        self._tokens = tokens
        self._step = SIZES if rounded else 1
        self._settle(torch.as_tensor(position_T), device)

    def _settle(self, position_T: Tensor, device: torch.device | str) -> None:
        # Indices for attention are built at the first layer, which knows the kernel, and serve all layers.
        self.position_T = position_T.to(device, non_blocking=True)
        self._padded: _Padded | None = None
        self._ragged: _Ragged | None = None

    def to(self, device: torch.device | str) -> Self:
        """The same layout with its indices on ``device``."""
        moved = copy.copy(self)
        moved._settle(self.position_T, device)
        return moved

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
        """``(T, H, D)``; see :class:`gagpo.model.flat.attention.AttentionLayout`."""
        if _ragged_fits(query_THD, value_THD, kind):
            self._ragged = self._ragged or _Ragged(self._branches, self._tokens, query_THD.device)
            return self._ragged.attend(query_THD, key_THD, value_THD, scale, kind.window or 0)
        self._padded = self._padded or _Padded(self._branches, self._tokens, self._step, query_THD.device)
        return self._padded.attend(query_THD, key_THD, value_THD, scale, kind)


class PackedRows(PackedTrees):
    """Causal attention within rows that lie one after the other and share no tokens."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu"):
        edges = np.cumsum([0, *lengths])
        rows = [Branch(np.arange(a, b), b - a) for a, b in itertools.pairwise(edges.tolist())]
        self.lengths = list(lengths)
        super().__init__(rows, device=device)

    def _settle(self, position_T: Tensor, device: torch.device | str) -> None:
        super()._settle(position_T, device)
        longest = max(self.lengths)
        length_B = torch.as_tensor(self.lengths)
        inside_BL = torch.arange(longest)[None, :] < length_B[:, None]
        first_B = torch.cumsum(length_B, 0) - length_B
        padded_BL = torch.where(inside_BL, first_B[:, None] + torch.arange(longest)[None, :], 0)
        self.shape = (len(self.lengths), longest)
        self.to_padded = padded_BL.reshape(-1).to(device, non_blocking=True)
        self.to_flat = inside_BL.reshape(-1).nonzero()[:, 0].to(device, non_blocking=True)


class _Padded:
    """Branches padded for attention: on a CPU in runs of similar size, elsewhere to the largest.

    step: queries and keys are padded to multiples of it; above 1, the number of rows to a :func:`bucket`.
    """

    def __init__(self, branches: Sequence[Branch], tokens: int, step: int, device: torch.device):
        runs = [branches]
        if device.type == "cpu":
            runs = [branches[run] for run in similar_runs(list(map(_sizes, branches)))]
        queries: list[np.ndarray] = []
        keys: list[np.ndarray] = []
        answer_T = np.zeros(tokens, np.int64)
        first = 0
        self.shapes: list[tuple[int, int, int]] = []
        self.attentions: list[CausalAttention] = []
        for run in runs:
            rows = bucket(len(run)) if step > 1 else len(run)
            width, longest = (-(-max(sizes) // step) * step for sizes in zip(*map(_sizes, run), strict=True))
            query_BQ, key_BL = np.zeros((rows, width), np.int64), np.zeros((rows, longest), np.int64)
            for row, branch in enumerate(run):
                query_BQ[row, : branch.new] = branch.new_places
                key_BL[row, : len(branch.path_L)] = branch.path_L
                # Places of the row's outputs when the outputs of all runs are concatenated.
                answer_T[branch.new_places] = first + row * width + np.arange(branch.new)
            first += rows * width
            queries.append(query_BQ.reshape(-1))
            keys.append(key_BL.reshape(-1))
            self.shapes.append((rows, width, longest))
            before = [branch.before for branch in run] + [0] * (rows - len(run))
            self.attentions.append(CausalAttention(before, width, longest, device, step))
        self.query_T, self.key_T, self.answer_T = (
            _index(position_T, tokens, device)
            for position_T in (np.concatenate(queries), np.concatenate(keys), answer_T)
        )

    def attend(self, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind) -> Tensor:
        # One gather for all runs, so that the backward pass sums a token's gradients once.
        query = _take(query_THD, self.query_T)
        key = _take(key_THD, self.key_T)
        value = _take(value_THD, self.key_T)
        queries = query.split([rows * width for rows, width, _ in self.shapes])
        keys, values = (x.split([rows * longest for rows, _, longest in self.shapes]) for x in (key, value))
        answers = []
        for (rows, *_), attention, *flat in zip(self.shapes, self.attentions, queries, keys, values, strict=True):
            query, key, value = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in flat)
            out = attention(query, key, value, scale, kind)
            answers.append(out.transpose(1, 2).reshape(-1, out.shape[1], out.shape[3]))
        return _take(torch.cat(answers) if len(answers) > 1 else answers[0], self.answer_T)


class _Ragged:
    """Branches without padding, for a GPU kernel for rows of any length."""

    def __init__(self, branches: Sequence[Branch], tokens: int, device: torch.device):
        num_queries = [branch.new for branch in branches]
        length = [len(branch.path_L) for branch in branches]
        positions = np.concatenate([branch.new_places for branch in branches])
        answer_T = np.zeros(tokens, np.int64)
        answer_T[positions] = np.arange(len(positions))
        self.query_T, self.answer_T = _index(positions, tokens, device), _index(answer_T, tokens, device)
        self.key_T = _index(np.concatenate([branch.path_L for branch in branches]), tokens, device)
        edges = (torch.as_tensor(np.cumsum([0, *counts]), dtype=torch.int32) for counts in (num_queries, length))
        self.query_edges, self.key_edges = (boundaries.to(device) for boundaries in edges)
        self.longest = (max(num_queries), max(length))

    def attend(self, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, window: int) -> Tensor:
        query = _take(query_THD, self.query_T)
        key = _take(key_THD, self.key_T)
        value = _take(value_THD, self.key_T)
        edges = (self.query_edges, self.key_edges)
        return _take(attend_ragged(query, key, value, edges, self.longest, scale, window), self.answer_T)


def _ragged_fits(query_THD: Tensor, value_THD: Tensor, kind: LayerKind) -> bool:
    """Whether the kernel for rows of any length supports these tensors."""
    sizes = {query_THD.shape[-1], value_THD.shape[-1]}
    return (
        kind.fused
        and query_THD.is_cuda
        and value_THD.dtype == torch.bfloat16
        and len(sizes) == 1
        and max(sizes) <= LARGEST_HEAD
    )


def _sizes(branch: Branch) -> tuple[int, int]:
    """Queries and keys."""
    return branch.new, len(branch.path_L)


def _index(places: np.ndarray, tokens: int, device: torch.device) -> Tensor | None:
    """Places as an index tensor; None for the identity."""
    if np.array_equal(places, np.arange(tokens)):
        return None
    return torch.as_tensor(places).to(device, non_blocking=True)


def _take(x_THD: Tensor, index: Tensor | None) -> Tensor:
    return x_THD if index is None else x_THD.index_select(0, index)
