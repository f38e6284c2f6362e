"""Which tokens belong together: the flat token axis and its segments.

Shape suffixes: K = response tokens of all rows, one after the other; M = actions (turns); R = rows (sequences).

A *sequence* is a row: one token sequence the trainer sees. With an append-only conversation a row is a whole episode;
with windowed history every turn starts a row, and a sequence is then a single turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gagpo.base.errors import InvalidArgument


@dataclass(frozen=True)
class Normaliser:
    """How much there is to average over: tokens, actions and rows of a mini-batch (not of one micro-batch of it)."""

    tokens: int
    actions: int
    rows: int

    @classmethod
    def total(cls, parts: Iterable[Normaliser]) -> Normaliser:
        """The normaliser of a mini-batch from those of its micro-batches; no action or row may lie in two of them."""
        parts = list(parts)
        return cls(
            sum(part.tokens for part in parts), sum(part.actions for part in parts), sum(part.rows for part in parts)
        )


@dataclass(frozen=True, eq=False)
class Layout:
    """Segments of K tokens: ``turn_K`` and ``row_K`` numbered 0..M-1 and 0..R-1, and the tokens in each (float32).

    Make one with :meth:`of` where the batch is put together, on the CPU, and move it with :meth:`to`: making it looks
    at the ids, which on an accelerator would wait for the device.
    """

    turn_K: Tensor
    row_K: Tensor
    turn_tokens_M: Tensor
    row_tokens_R: Tensor

    @classmethod
    def of(cls, turn_K: Tensor, row_K: Tensor | None = None) -> Layout:
        """Number any integer ids; equal ids are one segment wherever they stand. Without rows a turn is a row.

        A turn lies within one row: equal turn ids in two rows are two turns, so that turns may be counted per row.

        Raises ValueError when there are no tokens, when the shapes differ or when ids are not integers.
        """
        row_K = turn_K if row_K is None else row_K
        if turn_K.ndim != 1 or turn_K.shape != row_K.shape:
            raise InvalidArgument(
                f"turn_K and row_K are flat and equally long, got {_shape(turn_K)} and {_shape(row_K)}"
            )
        if turn_K.numel() == 0:
            raise InvalidArgument("the batch holds no response tokens: no loss can be computed")
        number_K, turn_tokens_M = _number(turn_K)
        if turn_K is row_K:
            return cls(number_K, number_K, turn_tokens_M.float(), turn_tokens_M.float())
        row_K, row_tokens_R = _number(row_K)
        turn_K, turn_tokens_M = _number(row_K * len(turn_tokens_M) + number_K)
        return cls(turn_K, row_K, turn_tokens_M.float(), row_tokens_R.float())

    @classmethod
    def of_mask(cls, mask_BL: Tensor) -> Layout:
        """Layout of a padded batch's sampled tokens, those where the mask is not 0, in the order of ``x[mask.bool()]``.

        A row of the batch is a row here, and each unbroken run of sampled tokens in it an action.
        """
        if mask_BL.ndim != 2:
            raise InvalidArgument(f"the mask must have one row per sequence, got shape {_shape(mask_BL)}")
        mask_BL = mask_BL.bool()
        starts_BL = mask_BL.clone()
        starts_BL[:, 1:] &= ~mask_BL[:, :-1]
        row_BL = torch.arange(len(mask_BL), device=mask_BL.device)[:, None].expand_as(mask_BL)
        return cls.of(starts_BL.flatten().cumsum(0)[mask_BL.flatten()], row_BL[mask_BL])

    def check(self, **tensors: Tensor | None) -> None:
        """Raises ValueError naming the first of the tensors that does not have one entry per token."""
        tokens = len(self.turn_K)
        for name, tensor in tensors.items():
            if tensor is not None and tensor.shape != (tokens,):
                raise InvalidArgument(f"{name} must have shape ({tokens},) as the layout has, got {_shape(tensor)}")

    def segments(self, level: str) -> tuple[Tensor, Tensor]:
        """The segment of each token, and the tokens of each: ``action`` for turns, ``sequence`` for rows."""
        return (self.turn_K, self.turn_tokens_M) if level == "action" else (self.row_K, self.row_tokens_R)

    @property
    def normaliser(self) -> Normaliser:
        return Normaliser(len(self.turn_K), len(self.turn_tokens_M), len(self.row_tokens_R))

    def to(self, device: torch.device | str) -> Layout:
        columns = (self.turn_K, self.row_K, self.turn_tokens_M, self.row_tokens_R)
        return Layout(*(column.to(device, non_blocking=True) for column in columns))


def segment_sum(value_K: Tensor, segment_K: Tensor, segments: int) -> Tensor:
    """Sum of each segment, differentiable."""
    return value_K.new_zeros(segments).index_add(0, segment_K, value_K)


def segment_mean(value_K: Tensor, segment_K: Tensor, tokens_S: Tensor) -> Tensor:
    """Mean of each segment, of so many tokens, differentiable."""
    return segment_sum(value_K, segment_K, len(tokens_S)) / tokens_S


def _number(ids: Tensor) -> tuple[Tensor, Tensor]:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidArgument(f"segment ids are integers, got {ids.dtype}")
    if bool((ids[1:] >= ids[:-1]).all()):
        _, number_K, size = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
    else:
        _, number_K, size = torch.unique(ids, return_inverse=True, return_counts=True)
    return number_K, size


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
