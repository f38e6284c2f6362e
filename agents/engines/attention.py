"""Attention over a flat token axis, for every transformers model that takes its attention function from the registry.

A forward pass of this project has shape ``(1, T)``: the tokens of many rows one after the other, without padding. Only
attention needs to know where rows begin, so only attention sees them apart: a *layout* object travels through the
model's keyword arguments and does it. Shape suffixes: T flat tokens, B rows, L positions, H heads, D head size.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from gagpo.envs.errors import GagpoError, InvalidArgument

NAME = "flat"
UNEVEN, WORTHWHILE = 1.2, 2**16  # padded over real scores of rows read together on a CPU; those worth a call
SMALL_SCORES = 2**25  # attention scores of one layer of a micro-batch, up to which they are written out on a CPU


@dataclass(frozen=True)
class Kind:
    """What a layer's attention has besides the softmax of scaled products.

    window: a token sees itself and the ``window - 1`` before it. softcap: scores pass ``c tanh(score / c)``. sinks_H: a
    logit per query head that takes part in the softmax and attends nowhere.
    """

    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None

    @property
    def fused(self) -> bool:
        """Whether the fused kernels can do it, with a mask."""
        return self.softcap is None and self.sinks_H is None


PLAIN = Kind()


class Layout(Protocol):
    """Attends from the queries of one layer; tensors are ``(T, H, D)``, keys and values with their own head count."""

    position_T: Tensor

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: Kind = PLAIN
    ) -> Tensor: ...


class UnknownAttention(GagpoError, ValueError):
    """A model asks of its attention what the flat one does not know; the message names it."""


# What models hand to every attention function, and what changes nothing in it.
HARMLESS = {
    *("dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions", "return_dict"),
    *("output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "logits_to_keep"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "num_items_in_batch", "deterministic"),
}


def _flat_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    layout: Layout | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        raise InvalidArgument("a model with flat attention is called through gagpo.agents.engines.attention.forward")
    for name, asked in more.items():
        if name not in HARMLESS and asked is not None:
            raise UnknownAttention(f"the attention of {type(module).__name__} takes {name}, which is not known here")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query_THD, key_THD, value_THD = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    plain = sliding_window is None and softcap is None and s_aux is None
    kind = PLAIN if plain else Kind(sliding_window, softcap, s_aux)
    return layout.attend(layer, query_THD, key_THD, value_THD, scale, kind)[None], None


AttentionInterface.register(NAME, _flat_attention)


def is_flat(model: torch.nn.Module) -> bool:
    """Whether the model reads the flat token axis; the others read padded rows with their own attention."""
    return getattr(model.config, "_attn_implementation", None) == NAME


def backbone_of(model: torch.nn.Module) -> Any:
    """The model without its output layer."""
    backbone: Any = model.base_model
    return model.model if backbone is model and hasattr(model, "model") else backbone


def hidden_states(model: torch.nn.Module, ids_T: Tensor, layout: Layout, keep_K: Tensor) -> Tensor:
    """What enters the output layer after the tokens at flat positions ``keep_K``: ``(K, width)``.

    A model that is not flat reads the rows of a :class:`PackedRows` padded on the right, where whatever is causal does
    not see the padding; so this is right for every causal model.
    """
    backbone = backbone_of(model)
    if is_flat(model):
        out = backbone(input_ids=ids_T[None], position_ids=layout.position_T[None], use_cache=False, layout=layout)
        flat_KD: Tensor = out.last_hidden_state[0, keep_K]
        return flat_KD
    if not isinstance(layout, PackedRows):
        raise InvalidArgument("a model without flat attention reads packed rows only")
    ids_BL = ids_T.index_select(0, layout.to_padded).view(layout.shape)
    hidden_BLD: Tensor = backbone(input_ids=ids_BL, use_cache=False).last_hidden_state
    return hidden_BLD.flatten(0, 1).index_select(0, layout.to_flat.index_select(0, keep_K))


class _Given(BaseModelOutputWithPast):
    """A backbone's output that holds hidden states and, of whatever else is asked for, nothing."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def head(model: torch.nn.Module, hidden_KD: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` of hidden states, with all that the model does to them (scales, soft caps).

    The model's own forward pass runs with its backbone taken out.
    """
    backbone = backbone_of(model)
    given = _Given(last_hidden_state=hidden_KD[None])  # type: ignore[arg-type]
    backbone.forward = lambda *_, **__: given
    try:
        logits_KV: Tensor = model(inputs_embeds=hidden_KD[None], use_cache=False).logits[0]
        return logits_KV
    finally:
        del backbone.forward


def forward(model: torch.nn.Module, ids_T: Tensor, layout: Layout, keep_K: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` after the tokens at flat positions ``keep_K``."""
    if not is_flat(model):
        return head(model, hidden_states(model, ids_T, layout, keep_K))
    position_1T = layout.position_T[None]
    out = model(input_ids=ids_T[None], position_ids=position_1T, use_cache=False, logits_to_keep=keep_K, layout=layout)
    logits_KV: Tensor = out.logits[0]
    return logits_KV


def written_out(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, kind: Kind, group: int
) -> Tensor:
    """Attention without a fused kernel: ``(B, H, Q, D)`` queries, where ``H`` are key heads and the ``group`` query
    heads that share one lie one after the other on the query axis. visible: broadcasts to ``(B, H, Q, L)``.
    """
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
        self.lengths = list(lengths)
        self.shape = (rows, longest)
        self.to_padded = padded_BL.reshape(-1).to(device)
        to_flat = inside_BL.reshape(-1).nonzero()[:, 0]
        self.to_flat = to_flat.to(device)
        self.position_T = (to_flat % longest).to(device)
        self.full = bool(inside_BL.all())
        self.edges = torch.cat([torch.zeros(1, dtype=torch.int32), torch.cumsum(length_B, 0).int()]).to(device)
        self._future_LL: Tensor | None = None
        self._visible_LL: dict[int | None, Tensor] = {}
        self._runs: list[tuple[slice, PackedRows]] | None = None

    def _alike(self) -> list[tuple[slice, PackedRows]]:
        """Runs of rows of like length and their places; none where one run is as good."""
        if self._runs is None:
            borders, begin = [0], 0
            for end in range(1, len(self.lengths) + 1):
                run = self.lengths[begin:end]
                padded = len(run) * max(run) ** 2
                if padded > max(WORTHWHILE, UNEVEN * sum(n * n for n in run)):
                    begin = end - 1
                    borders.append(begin)
            edges = [*borders, len(self.lengths)]
            place = np.cumsum([0, *self.lengths])
            self._runs = [
                (slice(int(place[a]), int(place[b])), PackedRows(self.lengths[a:b]))
                for a, b in itertools.pairwise(edges if borders[1:] else [])
            ]
        return self._runs

    def to(self, device: torch.device | str) -> PackedRows:
        """The same layout with its indices on ``device``."""
        moved = copy.copy(self)
        moved._visible_LL, moved._runs = {}, None
        for name in ("to_padded", "to_flat", "position_T", "edges"):
            setattr(moved, name, getattr(self, name).to(device, non_blocking=True))
        return moved

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: Kind = PLAIN
    ) -> Tensor:
        if query_THD.device.type == "cpu" and (runs := self._alike()):
            parts = [(layout, query_THD[at], key_THD[at], value_THD[at]) for at, layout in runs]
            return torch.cat([layout.attend(layer, q, k, v, scale, kind) for layout, q, k, v in parts])
        if kind.window is not None and kind.window >= self.shape[1]:  # as wide as the longest row: no window
            kind = Kind(None, kind.softcap, kind.sinks_H)
        if kind.window is not None and kind.fused and query_THD.is_cuda and value_THD.dtype == torch.bfloat16:
            return self._attend_ragged(query_THD, key_THD, value_THD, scale, kind.window)
        query, key, value = (self._pad(x) for x in (query_THD, key_THD, value_THD))
        rows, heads, longest, _ = query.shape
        half = query.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        grouped = heads != key.shape[1]
        if not kind.fused:
            out_BHLD = self._attend_written(query, key, value, scale, kind)
        elif kind.window is not None:
            out_BHLD = scaled_dot_product_attention(
                query, key, value, attn_mask=self._visible(kind.window), scale=scale, enable_gqa=grouped
            )
        elif query.device.type == "cpu" and half and rows * heads * longest**2 <= SMALL_SCORES:
            out_BHLD = self._attend_small(query, key, value, scale)
        else:
            out_BHLD = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        out = out_BHLD.transpose(1, 2).reshape(-1, *query_THD.shape[1:2], value_THD.shape[-1])
        return out if self.full else out.index_select(0, self.to_flat)

    def _visible(self, window: int | None) -> Tensor:
        """``(L, L)``: which keys a query sees."""
        if window not in self._visible_LL:
            longest = self.shape[1]
            seen = torch.ones(longest, longest, dtype=torch.bool, device=self.to_flat.device).tril()
            self._visible_LL[window] = seen if window is None else seen.triu(1 - window)
        return self._visible_LL[window]

    def _attend_written(self, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: Kind) -> Tensor:
        rows, heads, longest, size = query.shape
        shared = key.shape[1]
        group = heads // shared
        query = query.reshape(rows, shared, group * longest, size)
        visible = self._visible(kind.window).repeat(group, 1)
        return written_out(query, key, value, visible, scale, kind, group).reshape(rows, heads, longest, -1)

    def _attend_ragged(
        self, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, window: int
    ) -> Tensor:
        """Rows of any length without padding, on a GPU in half precision."""
        from torch.nn.attention.varlen import varlen_attn

        longest = self.shape[1]
        return varlen_attn(  # type: ignore[return-value]
            query_THD.to(value_THD.dtype),
            key_THD.to(value_THD.dtype),
            value_THD,
            self.edges,
            self.edges,
            longest,
            longest,
            scale=scale,
            window_size=(window - 1, 0),
            enable_gqa=query_THD.shape[1] != key_THD.shape[1],
        )

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

    def share(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of slot ``source`` over every slot of ``targets``."""
        index = torch.as_tensor(list(targets), device=self.device)
        for store in (*self.key, *self.value):
            store[index, :, :length] = store[source, :, :length]

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
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: Kind = PLAIN
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
        if kind.fused:
            out = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
        else:
            out = written_out(query, key, value, visible, scale, kind, group)
        out = out.reshape(rows, self.heads, group, new, size).permute(0, 3, 1, 2, 4).reshape(rows * new, heads, size)
        return out if self._decode else out.index_select(0, self._padded_T)
