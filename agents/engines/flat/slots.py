"""Keys and values of many growing sequences, a slot each; and decoding over slots in shapes that do not change.

Fixed shapes let a GPU be given a whole step at once as a CUDA graph. A decoding step of a model with 28 layers is some
hundred kernels of a few microseconds each; to launch them one by one takes a processor longer than a GPU takes to run
them. A graph is launched as one. It repeats the same kernels on the same memory, so nothing in a step may depend on how
many responses there are and how long they have become: a step runs over the first ``S`` slots of a cache and ``L``
tokens of each, both from a short list of sizes, whichever are in use. Shape suffixes as in
:mod:`gagpo.agents.engines.flat.attention`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gagpo.agents.engines.base import config_of
from gagpo.agents.engines.flat.attention import forward
from gagpo.agents.engines.flat.kernels import PLAIN, LayerKind, bucket, written_out
from gagpo.agents.shape import key_value_shape
from gagpo.base.errors import first_line

SHORTEST = 128  # tokens of a slot that a step reads at least
WARM = 2  # steps before a graph is captured: kernels that are chosen or compiled at their first use are so by then


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

    @classmethod
    def of(cls, model: torch.nn.Module) -> SlotCache:
        """An empty cache of the model's shape."""
        weight = next(model.parameters())
        return cls(*key_value_shape(config_of(model).get_text_config()), weight.dtype, weight.device)

    def _empty(self, slots: int, capacity: int) -> Tensor:
        return torch.zeros(slots, self.heads, capacity, self.head_size, dtype=self.dtype, device=self.device)

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for ``slots`` sequences of ``capacity`` tokens; what is stored stays."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        slots, capacity = max(slots, self.slots), max(-(-capacity // 128) * 128, self.capacity)
        for store in (self.key, self.value):  # layer by layer, so that old and new are never both held whole
            for layer, old in enumerate(store):
                new = self._empty(slots, capacity)
                new[: self.slots, :, : self.capacity] = old[: self.slots, :, : self.capacity]
                store[layer] = new
        self.slots, self.capacity = slots, capacity

    def share(self, source: int, targets: Sequence[int], length: int, begin: int = 0) -> None:
        """Copy the tokens from ``begin`` to ``length`` of slot ``source`` over every slot of ``targets``."""
        index = torch.as_tensor(list(targets), device=self.device)
        for store in (*self.key, *self.value):
            store[index, :, begin:length] = store[source, :, begin:length]

    def plan(self, slot_B: np.ndarray, start_B: np.ndarray, new_B: np.ndarray) -> None:
        """The next forward pass appends ``new_B`` tokens to slots ``slot_B``, which hold ``start_B`` tokens so far."""
        rows, longest_new, longest = len(slot_B), int(new_B.max()), int((start_B + new_B).max())
        row_T = np.repeat(np.arange(rows), new_B)
        offset_T = np.arange(len(row_T)) - np.repeat(np.cumsum(new_B) - new_B, new_B)
        position_T = start_B[row_T] + offset_T

        def as_index(x: np.ndarray) -> Tensor:
            return torch.as_tensor(x, dtype=torch.long, device=self.device)

        self.position_T = as_index(position_T)
        self._slot_T = as_index(slot_B[row_T])
        in_order = bool((slot_B == np.arange(rows)).all())
        self._slot_B = None if in_order else as_index(slot_B)
        self._shape = (rows, longest_new, longest)
        self._decode = longest_new == 1
        self._padded_T = as_index(row_T * longest_new + offset_T)
        query_position_BL = start_B[:, None] + np.minimum(np.arange(longest_new)[None, :], new_B[:, None] - 1)
        self._query_position_BL = query_position_BL
        self._visible_B1LL: dict[int | None, Tensor] = {}

    def _visible(self, window: int | None) -> Tensor:
        if window not in self._visible_B1LL:
            key_position_L = np.arange(self._shape[2])[None, None, :]
            query_position_BL1 = self._query_position_BL[:, :, None]
            seen_BLL = key_position_L <= query_position_BL1
            if window is not None:
                seen_BLL &= key_position_L > query_position_BL1 - window
            self._visible_B1LL[window] = torch.as_tensor(seen_BLL, device=self.device)[:, None]
        return self._visible_B1LL[window]

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
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
        visible = self._visible(kind.window)
        visible = visible if self._decode else visible.repeat(1, 1, group, 1)
        out = _attended(query, key, value, visible, scale, kind, group)
        out = out.reshape(rows, self.heads, group, new, size).permute(0, 3, 1, 2, 4).reshape(rows * new, heads, size)
        return out if self._decode else out.index_select(0, self._padded_T)


def _attended(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, kind: LayerKind, group: int
) -> Tensor:
    """By the fused kernel where it knows the layer's kind; arguments as of :func:`attention.written_out`."""
    if kind.fused:
        return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
    return written_out(query, key, value, visible, scale, kind, group)


class StaticStep:
    """One new token for each of the first ``slots`` slots of ``cache``, of which ``length`` tokens are read.

    A layout of :mod:`gagpo.agents.engines.flat.attention`. ``ids_S`` and ``position_T`` are written before every step;
    a slot that is not decoded gets any token, at a position where it holds nothing.
    """

    def __init__(self, cache: SlotCache, slots: int, length: int):
        self._cache, self._length = cache, length
        self.ids_S = torch.zeros(slots, dtype=torch.long, device=cache.device)
        self.position_T = torch.zeros(slots, dtype=torch.long, device=cache.device)
        self._slot_S = torch.arange(slots, device=cache.device)
        self._key_position_L = torch.arange(length, device=cache.device)
        self._visible: dict[int | None, Tensor] = {}
        self._graph: Any = None
        self._runs = 0

    def set(self, token_S: np.ndarray, position_S: np.ndarray) -> None:
        """What the next step reads, and where it goes; slots beyond those given get token 0 at position 0."""
        for into, values in ((self.ids_S, token_S), (self.position_T, position_S)):  # one copy to the device each
            whole = np.zeros(len(into), np.int64)
            whole[: len(values)] = values
            into.copy_(torch.from_numpy(whole))

    def run(self, model: torch.nn.Module) -> Tensor:
        """Logits ``(slots, vocabulary)``, float32, kernel by kernel."""
        self._visible = {}
        return forward(model, self.ids_S, self, self._slot_S).float()

    def replay(self, model: torch.nn.Module, pool: Any, logits_SV: Tensor) -> None:
        """The same into ``logits_SV``, as a graph once it has run a few times. pool: of memory that all graphs share.

        What a graph leaves behind lies in ``logits_SV`` and the cache alone, so graphs may follow each other in any
        order. RuntimeError where the model's step cannot be captured.
        """
        if self._graph is not None:
            self._graph.replay()
            return
        self._runs += 1
        if self._runs <= WARM:
            logits_SV.copy_(self.run(model))
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits_SV.copy_(self.run(model))
        self._visible = {}
        self._graph = graph
        graph.replay()

    def _seen(self, window: int | None) -> Tensor:
        """``(S, 1, 1, L)``: which tokens of its slot a new token sees."""
        if window not in self._visible:
            last_S1 = self.position_T[:, None]
            seen_SL = self._key_position_L <= last_S1
            if window is not None:
                seen_SL &= self._key_position_L > last_S1 - window
            self._visible[window] = seen_SL[:, None, None]
        return self._visible[window]

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
        stored_key, stored_value = self._cache.key[layer], self._cache.value[layer]
        stored_key[self._slot_S, :, self.position_T] = key_THD.to(stored_key.dtype)
        stored_value[self._slot_S, :, self.position_T] = value_THD.to(stored_value.dtype)
        slots, heads, size = query_THD.shape
        key, value = stored_key[:slots, :, : self._length], stored_value[:slots, :, : self._length]
        shared = key.shape[1]
        group = heads // shared
        query = query_THD.reshape(slots, shared, group, size)
        out = _attended(query, key, value, self._seen(kind.window), scale, kind, group)
        return out.reshape(slots, heads, size)


class StaticDecoder:
    """Makes and keeps the steps of each pair of sizes, until the cache's memory is another.

    graphs: capture them; without, the same steps are run kernel by kernel. A model whose step cannot be captured is run
    without graphs from then on, and a warning says why.
    """

    def __init__(self, graphs: bool):
        self._graphs = graphs
        self.forget()

    def forget(self) -> None:
        """Drop every step: weights or caches are going to lie elsewhere."""
        self._steps: dict[tuple[int, int], StaticStep] = {}
        self._memory = (0, 0, 0)
        self._pool: Any = None
        self._logits_SV: Tensor | None = None

    @staticmethod
    def reserve(cache: SlotCache, slots: int, length: int) -> None:
        """Make room in sizes that are rarely outgrown: with new memory every graph has to be captured again."""
        cache.reserve(bucket(slots), bucket(length, SHORTEST))

    def advance(self, model: torch.nn.Module, cache: SlotCache, token_S: np.ndarray, position_S: np.ndarray) -> Tensor:
        """Logits ``(>= S, vocabulary)`` after one new token of each of the first ``S`` slots; valid until the next."""
        slots, length = bucket(len(token_S)), bucket(int(position_S.max()) + 1, SHORTEST)
        self.reserve(cache, slots, length)
        memory = (cache.key[0].data_ptr(), cache.slots, cache.capacity)
        if memory != self._memory:
            self.forget()
            self._memory = memory
        step = self._steps.get((slots, length))
        if step is None:
            step = self._steps[slots, length] = StaticStep(cache, slots, length)
        step.set(token_S, position_S)
        if not self._graphs:
            return step.run(model)
        if self._pool is None or self._logits_SV is None:
            words = len(model.get_output_embeddings().weight)  # type: ignore[operator]
            self._pool = torch.cuda.graph_pool_handle()
            self._logits_SV = torch.empty(cache.slots, words, device=cache.device)
        try:
            step.replay(model, self._pool, self._logits_SV[:slots])
        except RuntimeError as error:
            logging.getLogger("gagpo").warning("decoding is not captured as a CUDA graph: %s", first_line(error))
            self.forget()
            self._graphs = False
            return self.advance(model, cache, token_S, position_S)
        return self._logits_SV[:slots]
