"""The flat token axis and its segments.

A *sequence* is a row: one token sequence of the trainer. It is a whole episode with an append-only conversation, and a
single turn with a windowed history.

Integer ids per token say which action and which row it belongs to. One sum by ids then serves both levels, where padded
matrices need one reshaping for rows and another one for actions.
Shape suffixes: K = response tokens of all rows; M = actions (turns); R = rows (sequences); S = segments of either kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gagpo.base.errors import InvalidArgument


@dataclass(frozen=True)
class Normaliser:
    """Numbers of tokens, actions and rows that a mini-batch's means divide by."""

    tokens: int
    actions: int
    rows: int

    @classmethod
    def total(cls, parts: Iterable[Normaliser]) -> Normaliser:
        """The normaliser of a mini-batch from those of its micro-batches, which must not share actions or rows."""
        return cls(*map(sum, zip(*((part.tokens, part.actions, part.rows) for part in parts), strict=True)))


@dataclass(frozen=True, eq=False)
class Layout:
    """Segments of K tokens: ``turn_K`` and ``row_K`` numbered 0..M-1 and 0..R-1, and the tokens in each (float32).

    Make it with :meth:`of` on the CPU and move it with :meth:`to`; :meth:`of` would wait for an accelerator.
    """

    turn_K: Tensor
    row_K: Tensor
    turn_tokens_M: Tensor
    row_tokens_R: Tensor

    @classmethod
    def of(cls, turn_K: Tensor, row_K: Tensor | None = None) -> Layout:
        """Segments of equal integer ids. Without rows, each turn is a row; equal turn ids in two rows are two turns.

        Raises:
            InvalidArgument: there are no tokens, shapes differ, or ids are not integers.
        """
        row_K = turn_K if row_K is None else row_K
        if turn_K.ndim != 1 or turn_K.shape != row_K.shape:
            raise InvalidArgument(
                f"turn_K and row_K must be flat and equally long: {_shape(turn_K)}, {_shape(row_K)}", key="turn_K"
            )
        if turn_K.numel() == 0:
            raise InvalidArgument("the batch has no response tokens")
        number_K, turn_tokens_M = _number(turn_K)
        if turn_K is row_K:
            return cls(number_K, number_K, turn_tokens_M.float(), turn_tokens_M.float())
        row_K, row_tokens_R = _number(row_K)
        # Row and turn as one key: a turn id may occur in two rows, and is then two actions.
        turn_K, turn_tokens_M = _number(row_K * len(turn_tokens_M) + number_K)
        return cls(turn_K, row_K, turn_tokens_M.float(), row_tokens_R.float())

    @classmethod
    def of_mask(cls, mask_BL: Tensor) -> Layout:
        """Layout of a padded batch's sampled tokens ``x[mask.bool()]``; each unbroken run in a row is an action."""
        if mask_BL.ndim != 2:
            raise InvalidArgument(
                f"the mask must have one row per sequence, got shape {_shape(mask_BL)}", key="mask_BL"
            )
        mask_BL = mask_BL.bool()
        starts_BL = mask_BL.clone()
        starts_BL[:, 1:] &= ~mask_BL[:, :-1]
        row_BL = torch.arange(len(mask_BL), device=mask_BL.device)[:, None].expand_as(mask_BL)
        return cls.of(starts_BL.flatten().cumsum(0)[mask_BL.flatten()], row_BL[mask_BL])

    def check(self, **tensors: Tensor | None) -> None:
        """Raise InvalidArgument for the first tensor that does not have one entry per token."""
        tokens = len(self.turn_K)
        for name, tensor in tensors.items():
            if tensor is not None and tensor.shape != (tokens,):
                raise InvalidArgument(
                    f"{name} must have shape ({tokens},) as the layout has, got {_shape(tensor)}", key=name
                )

    def segments(self, level: str) -> tuple[Tensor, Tensor]:
        """Segment of each token and tokens per segment: turns for ``action``, rows for ``sequence``."""
        return (self.turn_K, self.turn_tokens_M) if level == "action" else (self.row_K, self.row_tokens_R)

    @property
    def normaliser(self) -> Normaliser:
        return Normaliser(len(self.turn_K), len(self.turn_tokens_M), len(self.row_tokens_R))

    def to(self, device: torch.device | str) -> Layout:
        columns = (self.turn_K, self.row_K, self.turn_tokens_M, self.row_tokens_R)
        return Layout(*(column.to(device, non_blocking=True) for column in columns))


def segment_sum(value_K: Tensor, segment_K: Tensor, segments: int) -> Tensor:
    """Sum of each segment."""
    return value_K.new_zeros(segments).index_add(0, segment_K, value_K)


def segment_mean(value_K: Tensor, segment_K: Tensor, tokens_S: Tensor) -> Tensor:
    """Mean of each segment."""
    return segment_sum(value_K, segment_K, len(tokens_S)) / tokens_S


def _number(ids: Tensor) -> tuple[Tensor, Tensor]:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InvalidArgument(f"segment ids must be integers, got {ids.dtype}", key="segment")
    # Ids of packed rows are sorted already, and a comparison of neighbours costs less than a sort.
    unique = torch.unique_consecutive if bool((ids[1:] >= ids[:-1]).all()) else torch.unique
    _, number_K, size = unique(ids, return_inverse=True, return_counts=True)
    return number_K, size


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
