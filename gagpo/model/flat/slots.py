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

from gagpo.model.flat.kernels import (
    PLAIN,
    CausalAttention,
    LayerKind,
    as_mask,
    materialized_attention,
    similar_runs,
)
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
        row_T = np.repeat(np.arange(len(slot_B)), new_B)
        offset_T = np.arange(len(row_T)) - np.repeat(np.cumsum(new_B) - new_B, new_B)
        self.position_T = self._index(start_B[row_T] + offset_T)
        self._slot_T = self._index(slot_B[row_T])
        self._decode = int(new_B.max()) == 1
        if self._decode:
            # The first slots in order are a view of the cache; any others are gathered, which copies them.
            in_order = bool((slot_B == np.arange(len(slot_B))).all())
            self._slot_B = None if in_order else self._index(slot_B)
            self._keys = int(start_B.max()) + 1
            self._mask: dict[int | None, Tensor] = {}
        else:
            self._plan_reading(slot_B, start_B, new_B)

    def _plan_reading(self, slot_B: np.ndarray, start_B: np.ndarray, new_B: np.ndarray) -> None:
        """Rows with similar numbers of new and cached tokens attend together, as padding costs as much as tokens."""
        length_B = start_B + new_B
        first_B = np.cumsum(new_B) - new_B
        order_B = np.lexsort((length_B, new_B))
        runs = [slice(None)]
        if torch.device(self.device).type == "cpu":
            runs = similar_runs(list(zip(new_B[order_B].tolist(), length_B[order_B].tolist(), strict=True)))
        self._runs: list[tuple[slice | Tensor, CausalAttention]] = []
        self._run_queries: list[int] = []
        query_indices: list[np.ndarray] = []
        answer_T = np.zeros(int(new_B.sum()), np.int64)
        padded = 0
        for run in runs:
            rows_R = np.sort(order_B[run])
            queries, keys = int(new_B[rows_R].max()), int(length_B[rows_R].max())
            # Padding on the right repeats a row's last token; its outputs are read nowhere.
            offset_RQ = np.minimum(np.arange(queries), new_B[rows_R, None] - 1)
            query_indices.append((first_B[rows_R, None] + offset_RQ).ravel())
            for row in rows_R.tolist():
                answer_T[first_B[row] : first_B[row] + new_B[row]] = padded + np.arange(new_B[row])
                padded += queries
            self._run_queries.append(len(rows_R) * queries)
            slots_R = slot_B[rows_R]
            attention = CausalAttention(start_B[rows_R].tolist(), queries, keys, self.device)
            # Slots that follow each other are a view of the cache; others are gathered, which copies them.
            follow = bool((np.diff(slots_R) == 1).all())
            self._runs.append((slice(slots_R[0], slots_R[-1] + 1) if follow else self._index(slots_R), attention))
        self._query_Q = self._index(np.concatenate(query_indices))
        self._answer_T = self._index(answer_T)

    def _index(self, indices: np.ndarray) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.long, device=self.device)

    def plan_step(self, position_S: Tensor, keys: int) -> None:
        """Let the next forward pass append one token to each of the first slots and read ``keys`` tokens of each.

        position_S: where the tokens go, below ``keys``; on the cache's device, so that a recorded pass reads it anew.
        """
        slots = len(position_S)
        self.position_T = position_S
        self._slot_T = torch.arange(slots, device=self.device)
        self._slot_B = None
        self._keys = keys
        self._decode = True
        self._mask = {}

    def _visible(self, window: int | None) -> Tensor:
        """Which keys the new token of each row sees: ``(B, 1, 1, L)``."""
        key_L = torch.arange(self._keys, device=self.device)
        position_B1 = self.position_T[:, None]
        visible_BL = key_L <= position_B1
        if window is not None:
            visible_BL &= key_L > position_B1 - window
        return visible_BL[:, None, None]

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
        """``(T, H, D)``: store keys and values of the new tokens, then attend to all tokens of their slots."""
        self.key[layer][self._slot_T, :, self.position_T] = key_THD.to(self.dtype)
        self.value[layer][self._slot_T, :, self.position_T] = value_THD.to(self.dtype)
        if self._decode:
            return self._attend_step(layer, query_THD, scale, kind)
        answers = []
        queries = query_THD.index_select(0, self._query_Q).split(self._run_queries)
        for (slots, attention), query_QHD in zip(self._runs, queries, strict=True):
            key, value = (store[layer][slots, :, : attention.keys] for store in (self.key, self.value))
            query = query_QHD.view(len(key), -1, *query_QHD.shape[1:]).transpose(1, 2)
            out = attention(query, key, value, scale, kind)
            answers.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(answers).index_select(0, self._answer_T)

    def _attend_step(self, layer: int, query_THD: Tensor, scale: float, kind: LayerKind) -> Tensor:
        """Attention of one new token a row."""
        rows, heads, size = query_THD.shape
        slots = slice(rows) if self._slot_B is None else self._slot_B
        key, value = (store[layer][slots, :, : self._keys] for store in (self.key, self.value))
        # Query heads that share a key head become query positions: grouped attention without repeating keys.
        query = query_THD.view(rows, self.heads, heads // self.heads, size)
        if not kind.fused:
            out = materialized_attention(
                query, key, value, self._visible(kind.window), scale, kind, heads // self.heads
            )
            return out.reshape(rows, heads, size)
        if kind.window not in self._mask:
            self._mask[kind.window] = as_mask(self._visible(kind.window), query.dtype)
        out = scaled_dot_product_attention(query, key, value, self._mask[kind.window], scale=scale)
        return out.reshape(rows, heads, size)
