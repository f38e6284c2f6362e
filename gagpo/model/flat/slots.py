"""Keys and values of many growing sequences, one slot each.

Conversations continue for many turns, so what a turn has read stays for the next one. One tensor per layer with a slot
for each sequence lets a decoding step write and read in place; a tensor per sequence would be concatenated anew with
every token. Shape suffixes as in the module ``attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gagpo.model.flat.kernels import PLAIN, LayerKind, materialized_attention
from gagpo.model.shape import config_of, key_value_shape

ROUND = 128  # capacities are multiples of it, so that they are rarely outgrown


class SlotCache:
    """Keys and values of many growing sequences, and attention from new tokens to them.

    :meth:`plan` sets which slots the next forward pass extends, and by how many tokens.
    """

    def __init__(self, layers: int, heads: int, head_size: int, dtype: torch.dtype, device: torch.device | str):
        self.heads = heads
        self.head_size = head_size
        self.dtype = dtype
        self.device = device
        self.slots = 0
        self.capacity = 0  # tokens of each slot
        self.key = [self._empty(0, 0) for _ in range(layers)]
        self.value = [self._empty(0, 0) for _ in range(layers)]

    @classmethod
    def of(cls, model: torch.nn.Module) -> SlotCache:
        """An empty cache of the model's shape."""
        weight = next(model.parameters())
        return cls(*key_value_shape(config_of(model).get_text_config()), weight.dtype, weight.device)

    def _empty(self, slots: int, capacity: int) -> Tensor:
        return torch.zeros(slots, self.heads, capacity, self.head_size, dtype=self.dtype, device=self.device)

    def reserve(self, slots: int, capacity: int) -> None:
        """Hold ``slots`` sequences of ``capacity`` tokens; the contents of the first ``slots`` stay, others may go."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        copied = min(slots, self.slots)
        capacity = max(-(-capacity // ROUND) * ROUND, self.capacity)
        for store in (self.key, self.value):  # layer by layer: old and new caches are never both whole in memory
            for layer, old in enumerate(store):
                new = self._empty(slots, capacity)
                new[:copied, :, : self.capacity] = old[:copied]
                store[layer] = new
        self.slots = slots
        self.capacity = capacity

    def share(self, source: int, targets: Sequence[int], length: int, begin: int = 0) -> None:
        """Copy the tokens from ``begin`` to ``length`` of slot ``source`` to the slots ``targets``."""
        # All targets in one copy per layer: episodes of a group begin with the same prompt.
        index = torch.as_tensor(list(targets), device=self.device)
        for store in (*self.key, *self.value):
            store[index, :, begin:length] = store[source, :, begin:length]

    def plan(self, slot_B: np.ndarray, start_B: np.ndarray, new_B: np.ndarray) -> None:
        """Let the next forward pass append ``new_B`` tokens to slots ``slot_B``, which hold ``start_B`` tokens."""
        rows = len(slot_B)
        longest_new = int(new_B.max())
        longest = int((start_B + new_B).max())
        row_T = np.repeat(np.arange(rows), new_B)
        offset_T = np.arange(len(row_T)) - np.repeat(np.cumsum(new_B) - new_B, new_B)
        position_T = start_B[row_T] + offset_T

        def as_index(x: np.ndarray) -> Tensor:
            return torch.as_tensor(x, dtype=torch.long, device=self.device)

        self.position_T = as_index(position_T)
        self._slot_T = as_index(slot_B[row_T])
        # The first slots in order are a view of the cache; any others are gathered, which copies them.
        in_order = bool((slot_B == np.arange(rows)).all())
        self._slot_B = None if in_order else as_index(slot_B)
        self._shape = (rows, longest_new, longest)
        self._decode = longest_new == 1
        self._padded_T = as_index(row_T * longest_new + offset_T)
        last_B1 = new_B[:, None] - 1
        self._query_position_BL = as_index(start_B[:, None] + np.minimum(np.arange(longest_new)[None, :], last_B1))
        self._visible_B1LL: dict[int | None, Tensor] = {}

    def plan_step(self, position_S: Tensor, keys: int) -> None:
        """Let the next forward pass append one token to each of the first slots and read ``keys`` tokens of each.

        position_S: where the tokens go, below ``keys``; on the cache's device, so that a recorded pass reads it anew.
        """
        slots = len(position_S)
        self.position_T = position_S
        self._slot_T = torch.arange(slots, device=self.device)
        self._slot_B = None
        self._shape = (slots, 1, keys)
        self._decode = True
        self._query_position_BL = position_S[:, None]
        self._visible_B1LL = {}

    def _visible(self, window: int | None) -> Tensor:
        if window not in self._visible_B1LL:
            key_position_L = torch.arange(self._shape[2], device=self.device)
            query_position_BL1 = self._query_position_BL[:, :, None]
            visible_BLL = key_position_L <= query_position_BL1
            if window is not None:
                visible_BLL &= key_position_L > query_position_BL1 - window
            self._visible_B1LL[window] = visible_BLL[:, None]
        return self._visible_B1LL[window]

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
        """``(T, H, D)``: store keys and values of the new tokens, then attend to all tokens of their slots."""
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
        # Query heads that share a key head become query positions: grouped attention without repeating keys.
        group = heads // self.heads
        query = query.reshape(rows, new, self.heads, group, size).permute(0, 2, 3, 1, 4)
        query = query.reshape(rows, self.heads, group * new, size)
        visible = self._visible(kind.window)
        visible = visible if self._decode else visible.repeat(1, 1, group, 1)
        if kind.fused:
            out = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
        else:
            out = materialized_attention(query, key, value, visible, scale, kind, group)
        out = out.reshape(rows, self.heads, group, new, size).permute(0, 3, 1, 2, 4).reshape(rows * new, heads, size)
        return out if self._decode else out.index_select(0, self._padded_T)
