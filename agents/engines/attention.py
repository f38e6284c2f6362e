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
SMALL_SCORES = 2**26  # attention scores of one layer of a micro-batch, up to which they are written out on a CPU
BLOCK = 128  # queries whose scores are written out together


@dataclass(frozen=True)
class LayerKind:
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


PLAIN = LayerKind()


class AttentionLayout(Protocol):
    """Attends from the queries of one layer; tensors are ``(T, H, D)``, keys and values with their own head count."""

    position_T: Tensor

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
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
    layout: AttentionLayout | None = None,
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
    kind = PLAIN if plain else LayerKind(sliding_window, softcap, s_aux)
    return layout.attend(layer, query_THD, key_THD, value_THD, scale, kind)[None], None


AttentionInterface.register(NAME, _flat_attention)


def is_flat(model: torch.nn.Module) -> bool:
    """Whether the model reads the flat token axis; the others read padded rows with their own attention."""
    return getattr(model.config, "_attn_implementation", None) == NAME


def backbone_of(model: torch.nn.Module) -> Any:
    """The model without its output layer."""
    backbone: Any = model.base_model
    return model.model if backbone is model and hasattr(model, "model") else backbone


def hidden_states(model: torch.nn.Module, ids_T: Tensor, layout: AttentionLayout, keep_K: Tensor) -> Tensor:
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


def forward(model: torch.nn.Module, ids_T: Tensor, layout: AttentionLayout, keep_K: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` after the tokens at flat positions ``keep_K``."""
    if not is_flat(model):
        return head(model, hidden_states(model, ids_T, layout, keep_K))
    position_1T = layout.position_T[None]
    out = model(input_ids=ids_T[None], position_ids=position_1T, use_cache=False, logits_to_keep=keep_K, layout=layout)
    logits_KV: Tensor = out.logits[0]
    return logits_KV


def written_out(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, kind: LayerKind, group: int
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
        self._runs: list[tuple[int, PackedRows]] | None = None

    def _alike(self) -> list[tuple[int, PackedRows]]:
        """Runs of rows of like length with the number of their tokens; none where one run is as good."""
        if self._runs is None:
            borders, begin = [0], 0
            for end in range(1, len(self.lengths) + 1):  # a run ends where padding it further would cost too much
                run = self.lengths[begin:end]
                padded = len(run) * max(run) ** 2
                if padded > max(WORTHWHILE, UNEVEN * sum(n * n for n in run)):
                    begin = end - 1
                    borders.append(begin)
            edges = [*borders, len(self.lengths)]
            runs = [self.lengths[a:b] for a, b in itertools.pairwise(edges if borders[1:] else [])]
            self._runs = [(sum(run), PackedRows(run)) for run in runs]
        return self._runs

    def to(self, device: torch.device | str) -> PackedRows:
        """The same layout with its indices on ``device``."""
        moved = copy.copy(self)
        moved._visible_LL, moved._runs = {}, None
        for name in ("to_padded", "to_flat", "position_T", "edges"):
            setattr(moved, name, getattr(self, name).to(device, non_blocking=True))
        return moved

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor:
        if query_THD.device.type == "cpu" and (runs := self._alike()):
            sizes, layouts = zip(*runs, strict=True)
            cut = zip(layouts, *(x.split(sizes) for x in (query_THD, key_THD, value_THD)), strict=True)
            return torch.cat([layout.attend(layer, q, k, v, scale, kind) for layout, q, k, v in cut])
        if kind.window is not None and kind.window >= self.shape[1]:  # as wide as the longest row: no window
            kind = LayerKind(None, kind.softcap, kind.sinks_H)
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

    def _attend_written(self, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: LayerKind) -> Tensor:
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
        """Attention written out in bfloat16 on a CPU, where the fused kernel takes 1.3 to 4 times as long.

        A block of queries at a time reads no key after itself, and its scores stay in the cache.
        """
        rows, heads, longest, size = query.shape
        shared = key.shape[1]
        group = heads // shared
        # What autocast would cast in every block is cast once.
        query, key, value = ((query * scale).bfloat16(), key.bfloat16(), value.bfloat16())
        if self._future_LL is None:
            above = torch.ones(longest, longest, dtype=torch.bool).triu(1)
            self._future_LL = torch.zeros(longest, longest, dtype=torch.bfloat16).masked_fill(above, -torch.inf)
        query = query.reshape(rows, shared, group, longest, size)
        blocks = []
        for begin in range(0, longest, BLOCK):  # a block of queries against all keys up to its end
            end = min(begin + BLOCK, longest)
            asked = query[:, :, :, begin:end].reshape(rows, shared, -1, size)
            score = (asked @ key[:, :, :end].transpose(2, 3)).view(rows, shared, group, -1, end)
            weight = (score + self._future_LL[begin:end, :end]).softmax(-1)
            block = weight.view(rows, shared, -1, end) @ value[:, :, :end]
            blocks.append(block.view(rows, shared, group, -1, value.shape[-1]))
        return torch.cat(blocks, 3).view(rows, heads, longest, value.shape[-1])

    def _pad(self, x_THD: Tensor) -> Tensor:
        x = x_THD if self.full else x_THD.index_select(0, self.to_padded)
        return x.reshape(*self.shape, *x_THD.shape[1:]).transpose(1, 2)
