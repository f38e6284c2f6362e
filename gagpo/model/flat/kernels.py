"""Attention of padded rows: which kernel computes it on which device.

No kernel is fastest everywhere. Fused ones take no soft cap or sinks, in bfloat16 on a CPU materialized scores are
faster if they fit the cache, and on a GPU one kernel needs no padding. The choice changes speed, not what is computed.
Shape suffixes: T flat tokens, B rows, Q queries of a row, L positions of a row, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from gagpo.model.chosen_format import native_bfloat16

SMALL_SCORES = 2**26  # scores of one layer of a micro-batch up to which they are materialized on a CPU
BLOCK = 128  # queries whose scores are materialized together
FUSED_BLOCK = 256  # queries of a call of the fused kernel on a CPU
UNEVEN = 1.2  # padded scores per real score in one call on a CPU, above which rows are split over two calls
WORTHWHILE = 2**16  # scores for which another call on a CPU takes less time than their padding
KEPT_SCORES = 2**20  # materialized scores of one layer of a micro-batch that are kept for the backward pass


@dataclass(frozen=True)
class LayerKind:
    """What a layer's attention has in addition to the softmax of scaled products.

    window: a token sees itself and the ``window - 1`` tokens before it.
    softcap: scores become ``c tanh(score / c)``.
    sinks_H: a logit per query head that takes part in the softmax without a value.
    """

    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None

    @property
    def fused(self) -> bool:
        """Whether the fused kernels support it, with a mask."""
        return self.softcap is None and self.sinks_H is None


PLAIN = LayerKind()


def bucket(count: int) -> int:
    """The smallest size >= ``count`` among 1, 2, 3, 4 and 5, 6, 7, 8 times each power of two."""
    step = 1
    while count > 8 * step:
        step *= 2
    return step * max(1, -(-count // step))


def similar_runs(sizes: Sequence[tuple[int, int]]) -> list[slice]:
    """Split rows into few runs with little padding.

    sizes: queries and keys of each row, sorted.
    """
    runs: list[slice] = []
    begin = longest_queries = longest_keys = scores = 0
    for end, (queries, keys) in enumerate(sizes):
        longest_queries = max(longest_queries, queries)
        longest_keys = max(longest_keys, keys)
        scores += queries * keys
        padded = (end + 1 - begin) * longest_queries * longest_keys
        if end > begin and padded > max(WORTHWHILE, UNEVEN * scores):
            runs.append(slice(begin, end))
            begin = end
            longest_queries = queries
            longest_keys = keys
            scores = queries * keys
    return [*runs, slice(begin, len(sizes))]


def materialized_attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, kind: LayerKind, group: int
) -> Tensor:
    """Attention without a fused kernel.

    query: ``(B, H, Q, D)`` with ``H`` key heads; the ``group`` query heads of a key head are stacked on the query axis.
    visible: broadcasts to ``(B, H, Q, L)``.
    """
    # Softmax needs float32: sums of many half-precision weights lose the small ones.
    score = (query.float() @ key.float().transpose(2, 3)) * scale
    if kind.softcap is not None:
        score = kind.softcap * torch.tanh(score / kind.softcap)
    score = score.masked_fill(~visible, -torch.inf)
    if kind.sinks_H is not None:
        heads, queries = query.shape[1:3]
        sink = kind.sinks_H.float().view(1, heads, group, 1).expand(len(query), -1, -1, queries // group)
        score = torch.cat([score, sink.reshape(len(query), heads, queries, 1)], -1)
        return (score.softmax(-1)[..., :-1].to(value.dtype) @ value).to(query.dtype)
    return (score.softmax(-1).to(value.dtype) @ value).to(query.dtype)


def as_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What to pass to the fused kernels as the mask of queries of type ``dtype``.

    On a CPU PyTorch adds a mask to the scores, and would convert a boolean one anew in every layer, which takes a fifth
    of the time of attention.
    """
    if visible.device.type != "cpu":
        return visible
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)


class CausalAttention:
    """Attention of ``B`` padded rows: query ``q`` of row ``b`` sees the keys up to position ``before[b] + q``.

    Padding is on the right, unseen by the row's queries. Padding queries see some keys, so that no output is NaN.

    before: positions of each row that are keys but not queries.
    step: the number of keys that are read is rounded up to a multiple of it.
    """

    def __init__(
        self, before: Sequence[int], queries: int, keys: int, device: torch.device | str = "cpu", step: int = 1
    ):
        self.queries = queries
        self.keys = keys
        self.device = device
        self.most_before = -(-max(before) // step) * step
        self.least_before = min(before)
        self._before_B = torch.as_tensor(before if self.most_before else [0], device=device)
        self._visible: dict[int | None, Tensor] = {}
        self._mask: dict[int | None, Tensor] = {}
        self._bias: Tensor | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: LayerKind = PLAIN) -> Tensor:
        """``(B, H, Q, D)`` from ``(B, H, Q, D)`` queries and ``(B, H', L, D)`` keys and values."""
        if kind.window is not None and kind.window >= self.keys:  # wider than the longest row
            kind = LayerKind(None, kind.softcap, kind.sinks_H)
        if not kind.fused:
            return self._materialized(query, key, value, scale, kind)
        grouped = query.shape[1] != key.shape[1]
        if kind.window is None and self._is_faster_materialized(query):
            return self._materialized_in_half(query, key, value, scale)
        if kind.window is None and not self.most_before:
            return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        if kind.window not in self._mask:
            self._mask[kind.window] = as_mask(self._visible_keys(kind.window)[:, None], query.dtype)
        if query.device.type != "cpu":
            return self._fused_stacked(query, key, value, scale, self._mask[kind.window])
        return self._fused_in_blocks(query, key, value, scale, kind.window)

    def _fused_in_blocks(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention by the fused kernel on a CPU, a block of queries at a time over the keys that it can see.

        With a mask the kernel computes hidden scores too: of a long row that begins at 0, as many as visible ones.
        """
        mask = self._mask[window]
        grouped = query.shape[1] != key.shape[1]
        blocks = []
        for begin in range(0, self.queries, FUSED_BLOCK):
            end = min(begin + FUSED_BLOCK, self.queries)
            first, last = self._key_range(begin, end, window)
            out = scaled_dot_product_attention(
                query[:, :, begin:end],
                key[:, :, first:last],
                value[:, :, first:last],
                mask[:, :, begin:end, first:last],
                scale=scale,
                enable_gqa=grouped,
            )
            blocks.append(out)
        return torch.cat(blocks, 2) if len(blocks) > 1 else blocks[0]

    def _fused_stacked(self, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor) -> Tensor:
        """Attention by a GPU's fused kernel, the query heads of a key head stacked on the query axis.

        With a mask no such kernel takes heads in groups: PyTorch would repeat the keys and materialize all scores.
        """
        rows, heads, queries, size = query.shape
        group = heads // key.shape[1]
        stacked = query.reshape(rows, key.shape[1], group * queries, size)
        out = scaled_dot_product_attention(stacked, key, value, mask.repeat(1, 1, group, 1), scale=scale)
        return out.view(rows, heads, queries, -1)

    def _key_range(self, begin: int, end: int, window: int | None) -> tuple[int, int]:
        """The first and one past the last key that a query from ``begin`` to ``end`` of some row sees."""
        first = 0
        if window is not None:
            first = max(0, min(self.least_before + begin, self.keys - 1) - window + 1)
        return first, min(self.most_before + end, self.keys)

    def _is_faster_materialized(self, query: Tensor) -> bool:
        """Whether to compute scores as matrices: in bfloat16, on a CPU that multiplies it natively.

        On other CPUs the products of :meth:`_materialized_in_half` are plain loops, 30 to 540 times slower than in
        float32, while the fused kernel converts blocks to float32 and stays fast.
        """
        half = query.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        if not half or query.device.type != "cpu" or query.shape[:3].numel() * self.keys > SMALL_SCORES:
            return False
        return native_bfloat16("cpu")[0]

    def _visible_keys(self, window: int | None) -> Tensor:
        """Which keys a query sees: ``(B, Q, L)``, or ``(1, Q, L)`` if all rows are alike."""
        if window not in self._visible:
            self._visible[window] = self._visible_of(0, self.queries, 0, self.keys, window)
        return self._visible[window]

    def _materialized(self, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: LayerKind) -> Tensor:
        """Materialized attention, a block of queries at a time over the keys that it can see.

        In long rows the scores take most of the memory, so more than :data:`KEPT_SCORES` of them are recomputed in the
        backward pass.
        """
        rows, heads, queries, size = query.shape
        shared = key.shape[1]
        group = heads // shared
        query = query.reshape(rows, shared, group, queries, size)
        recomputed = torch.is_grad_enabled() and rows * heads * queries * self.keys > KEPT_SCORES
        blocks = []
        for begin in range(0, queries, BLOCK):
            end = min(begin + BLOCK, queries)
            first, last = self._key_range(begin, end, kind.window)

            def block(query: Tensor, key: Tensor, value: Tensor, begin: int = begin, first: int = first) -> Tensor:
                count = query.shape[3]
                visible = self._visible_of(begin, count, first, key.shape[2], kind.window)
                flat = query.reshape(rows, shared, group * count, size)
                answer = materialized_attention(
                    flat, key, value, visible.repeat(1, group, 1)[:, None], scale, kind, group
                )
                return answer.view(rows, shared, group, count, -1)

            slices = (query[:, :, :, begin:end], key[:, :, first:last], value[:, :, first:last])
            if recomputed:
                blocks.append(checkpoint(block, *slices, use_reentrant=False, preserve_rng_state=False))
            else:
                blocks.append(block(*slices))
        return torch.cat(blocks, 3).view(rows, heads, queries, -1)

    def _visible_of(self, begin: int, count: int, first: int, keys: int, window: int | None) -> Tensor:
        """``(B, count, keys)``: which keys from ``first`` on are seen by the ``count`` queries from ``begin`` on."""
        position_BQ = self._before_B[:, None] + torch.arange(begin, begin + count, device=self.device)
        position_BQ1 = position_BQ.clamp(max=self.keys - 1)[:, :, None]  # padding sees as much as the last key
        key_L = torch.arange(first, first + keys, device=self.device)
        visible = key_L <= position_BQ1
        return visible if window is None else visible & (key_L > position_BQ1 - window)

    def _materialized_in_half(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Materialized attention in bfloat16 on a CPU, where the fused kernel takes 1.3 to 4 times as long.

        The scores of a block of queries stay in the CPU's cache.
        """
        rows, heads, queries, size = query.shape
        shared = key.shape[1]
        group = heads // shared
        # Cast once what autocast would cast in every block.
        query = (query * scale).bfloat16()
        key = key.bfloat16()
        value = value.bfloat16()
        if self._bias is None:
            hidden = ~self._visible_keys(None)
            self._bias = torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill(hidden, -torch.inf)
        query = query.reshape(rows, shared, group, queries, size)
        blocks = []
        for begin in range(0, queries, BLOCK):
            end = min(begin + BLOCK, queries)
            last = min(self.most_before + end, self.keys)
            block_query = query[:, :, :, begin:end].reshape(rows, shared, -1, size)
            score = (block_query @ key[:, :, :last].transpose(2, 3)).view(rows, shared, group, -1, last)
            weight = (score + self._bias[:, None, None, begin:end, :last]).softmax(-1)
            block = weight.view(rows, shared, -1, last) @ value[:, :, :last]
            blocks.append(block.view(rows, shared, group, -1, value.shape[-1]))
        return torch.cat(blocks, 3).view(rows, heads, queries, value.shape[-1])


def attend_ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: tuple[Tensor, Tensor],
    most: tuple[int, int],
    scale: float,
    window: int,
) -> Tensor:
    """Attention without padding, on a GPU in half precision; a row's queries are its last positions.

    edges: int32, boundaries of the rows' queries and keys.
    most: queries and keys of the longest row.
    window: as in :class:`LayerKind`, 0 for none.
    """
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(  # type: ignore[return-value]
        query.to(value.dtype),
        key.to(value.dtype),
        value,
        *edges,
        *most,
        scale=scale,
        window_size=(window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
