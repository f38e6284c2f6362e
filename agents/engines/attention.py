"""Attention over a flat token axis, for every transformers model that takes its attention function from the registry.

A forward pass of this project has shape ``(1, T)``: the tokens of many rows one after the other, without padding. Only
attention needs to know where rows begin, so only attention sees them apart: a *layout* object travels through the
model's keyword arguments and does it. Shape suffixes: T flat tokens, B rows, L positions, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from gagpo.envs.errors import InvalidArgument

NAME = "flat"
SMALL_SCORES = 2**25  # attention scores of one layer of a micro-batch, up to which they are written out on a CPU


class Layout(Protocol):
    """Attends from the queries of one layer; tensors are ``(T, H, D)``, keys and values with their own head count."""

    def attend(self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float) -> Tensor: ...


def _flat_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        raise InvalidArgument("a model with flat attention is called through gagpo.agents.engines.attention.forward")
    if sliding_window is not None:
        raise InvalidArgument(
            "flat attention has no sliding window; set use_sliding_window to false in the model's config"
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query_THD, key_THD, value_THD = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    return layout.attend(layer, query_THD, key_THD, value_THD, scale)[None], None


AttentionInterface.register(NAME, _flat_attention)


def forward(model: torch.nn.Module, ids_T: Tensor, position_T: Tensor, layout: Layout, keep_K: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` after the tokens at flat positions ``keep_K``."""
    out = model(
        input_ids=ids_T[None],
        position_ids=position_T[None],
        use_cache=False,
        logits_to_keep=keep_K,
        layout=layout,
    )
    return out.logits[0]


class PackedRows:
    """Causal attention within each row of a training micro-batch.

    Rows are padded to the longest for the attention alone. Padding stands on the right, where a causal mask hides it.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu"):
        rows, longest = len(lengths), max(lengths)
        length_B = torch.as_tensor(np.asarray(lengths))
        start_B = torch.cumsum(length_B, 0) - length_B
        offset_L = torch.arange(longest)
        inside_BL = offset_L[None, :] < length_B[:, None]
        padded_BL = torch.where(inside_BL, start_B[:, None] + offset_L[None, :], 0)
        self.shape = (rows, longest)
        self.to_padded = padded_BL.reshape(-1).to(device)
        self.to_flat = inside_BL.reshape(-1).nonzero()[:, 0].to(device)
        self.position_T = (self.to_flat % longest).to(device)
        self.full = bool(inside_BL.all())
        self._future_LL: Tensor | None = None

    def attend(self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float) -> Tensor:
        query, key, value = (self._pad(x) for x in (query_THD, key_THD, value_THD))
        rows, heads, longest, _ = query.shape
        half = query.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        if query.device.type == "cpu" and half and rows * heads * longest**2 <= SMALL_SCORES:
            out_BHLD = self._attend_small(query, key, value, scale)
        else:
            grouped = heads != key.shape[1]
            out_BHLD = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        out = out_BHLD.transpose(1, 2).reshape(-1, *query_THD.shape[1:])
        return out if self.full else out.index_select(0, self.to_flat)

    def _attend_small(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention written out, for short rows in bfloat16 on a CPU, where the fused kernel takes twice as long."""
        rows, heads, longest, size = query.shape
        shared = key.shape[1]
        if self._future_LL is None:
            above = torch.ones(longest, longest, dtype=torch.bool).triu(1)
            self._future_LL = torch.zeros(longest, longest).masked_fill(above, -torch.inf)
        query = (query * scale).reshape(rows, shared, heads // shared * longest, size)
        score = (query @ key.transpose(2, 3)).view(rows, shared, heads // shared, longest, longest)
        weight = (score + self._future_LL.to(score.dtype)).softmax(-1).to(value.dtype)
        return (weight.view(rows, shared, -1, longest) @ value).view(rows, heads, longest, size)

    def _pad(self, x_THD: Tensor) -> Tensor:
        x = x_THD if self.full else x_THD.index_select(0, self.to_padded)
        return x.reshape(*self.shape, *x_THD.shape[1:]).transpose(1, 2)


class SlotCache:
    """Keys and values of many growing sequences, one slot each, and attention from ragged new tokens to them.

    ``plan`` says which slots the next forward pass extends and by how many tokens; ``length`` is kept per slot by the
    caller's plans. A slot is dense (no gaps), so attention reads no more than the longest live sequence.
    """

    def __init__(self, layers: int, heads: int, head_size: int, dtype: torch.dtype, device: torch.device | str):
        self.heads, self.head_size, self.dtype, self.device = heads, head_size, dtype, device
        self.slots = self.capacity = 0
        self.key = [self._empty(0, 0) for _ in range(layers)]
        self.value = [self._empty(0, 0) for _ in range(layers)]

    def _empty(self, slots: int, capacity: int) -> Tensor:
        return torch.zeros(slots, self.heads, capacity, self.head_size, dtype=self.dtype, device=self.device)

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for ``slots`` sequences of ``capacity`` tokens; what is stored stays."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        old_slots, old_capacity = self.slots, self.capacity
        self.slots = max(slots, old_slots)
        self.capacity = max(-(-capacity // 128) * 128, old_capacity)
        for store in (self.key, self.value):
            for layer, old in enumerate(store):
                store[layer] = self._empty(self.slots, self.capacity)
                store[layer][:old_slots, :, :old_capacity] = old

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of slot ``source`` over slot ``target``."""
        for store in (*self.key, *self.value):
            store[target, :, :length] = store[source, :, :length]

    def plan(self, slot_B: np.ndarray, start_B: np.ndarray, new_B: np.ndarray) -> None:
        """The next forward pass appends ``new_B`` tokens to slots ``slot_B``, which hold ``start_B`` tokens so far."""
        rows, longest_new, longest = len(slot_B), int(new_B.max()), int((start_B + new_B).max())
        row_T = np.repeat(np.arange(rows), new_B)
        offset_T = np.arange(len(row_T)) - np.repeat(np.cumsum(new_B) - new_B, new_B)
        position_T = start_B[row_T] + offset_T
        as_index = lambda x: torch.as_tensor(x, dtype=torch.long, device=self.device)  # noqa: E731
        self.position_T = as_index(position_T)
        self._slot_T = as_index(slot_B[row_T])
        in_order = bool((slot_B == np.arange(rows)).all())
        self._slot_B = None if in_order else as_index(slot_B)
        self._shape = (rows, longest_new, longest)
        self._decode = longest_new == 1
        self._padded_T = as_index(row_T * longest_new + offset_T)
        query_position_BL = start_B[:, None] + np.minimum(np.arange(longest_new)[None, :], new_B[:, None] - 1)
        visible_BLL = np.arange(longest)[None, None, :] <= query_position_BL[:, :, None]
        self._visible_B1LL = torch.as_tensor(visible_BLL, device=self.device)[:, None]

    def attend(self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float) -> Tensor:
        rows, new, longest = self._shape
        self.key[layer][self._slot_T, :, self.position_T] = key_THD.to(self.dtype)
        self.value[layer][self._slot_T, :, self.position_T] = value_THD.to(self.dtype)
        if self._slot_B is None:
            key, value = self.key[layer][:rows, :, :longest], self.value[layer][:rows, :, :longest]
        else:
            key = self.key[layer][self._slot_B, :, :longest]
            value = self.value[layer][self._slot_B, :, :longest]
        heads, size = query_THD.shape[1:]
        if self._decode:
            query = query_THD.reshape(rows, 1, heads, size)
        else:
            query = query_THD.new_zeros(rows * new, heads, size)
            query[self._padded_T] = query_THD
            query = query.reshape(rows, new, heads, size)
        # Query heads that share a key head become further query positions: grouped attention without repeating keys.
        group = heads // self.heads
        query = query.reshape(rows, new, self.heads, group, size).permute(0, 2, 3, 1, 4)
        query = query.reshape(rows, self.heads, group * new, size)
        visible = self._visible_B1LL if self._decode else self._visible_B1LL.repeat(1, 1, group, 1)
        out = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
        out = out.reshape(rows, self.heads, group, new, size).permute(0, 3, 1, 2, 4).reshape(rows * new, heads, size)
        return out if self._decode else out.index_select(0, self._padded_T)
