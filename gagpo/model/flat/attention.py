"""Attention over a flat token axis, for transformers models that take their attention function from the registry.

A forward pass has shape ``(1, T)``: the tokens of many rows one after the other, without padding. Only attention needs
to know the rows: a *layout* object passes through the model's keyword arguments and separates them.

Transformers' own interface takes a padded batch or a mask of all pairs. Registering an attention function keeps the
models' own code, of any family, and replaces the one operation that mixes tokens.
Shape suffixes: T flat tokens, B rows, L positions, H heads, D head size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from gagpo.base.errors import InvalidArgument
from gagpo.model.flat.kernels import PLAIN, LayerKind
from gagpo.model.flat.packed import PackedRows

NAME = "flat"


class AttentionLayout(Protocol):
    """Computes attention of one layer; tensors are ``(T, H, D)``, keys and values with their own head count."""

    position_T: Tensor

    def attend(
        self, layer: int, query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, scale: float, kind: LayerKind = PLAIN
    ) -> Tensor: ...


# Arguments that models pass to every attention function and that do not affect it here: updates keep evaluation mode,
# in which dropout is 0, and flat attention is always causal.
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
    layout: AttentionLayout | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, with the arguments that transformers passes to a registered function.

    query, key, value: ``[1, H, T, D]``; key and value may have fewer heads.
    attention_mask: ignored. transformers makes none for a function of this name; the layout separates rows.
    """
    if layout is None:
        raise InvalidArgument("a model with flat attention is called through gagpo.model.flat.attention.forward")
    # transformers' names: Mistral's windows, Gemma 2's soft caps, the sinks of gpt-oss.
    window: int | None = more.pop("sliding_window", None)
    softcap: float | None = more.pop("softcap", None)
    sinks_H: Tensor | None = more.pop("s_aux", None)
    for name, argument in more.items():  # one that is ignored could change what is computed
        if name not in HARMLESS and argument is not None:
            raise InvalidArgument(f"the attention of {type(module).__name__} takes {name}, which is not known here")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query_THD, key_THD, value_THD = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    plain = window is None and softcap is None and sinks_H is None
    layer_kind = PLAIN if plain else LayerKind(window, softcap, sinks_H)
    return layout.attend(layer, query_THD, key_THD, value_THD, scale, layer_kind)[None], None


AttentionInterface.register(NAME, _flat_attention)


def is_flat(model: torch.nn.Module) -> bool:
    """Whether the model uses flat attention; others read padded rows with their own attention."""
    return getattr(model.config, "_attn_implementation", None) == NAME


def backbone_of(model: torch.nn.Module) -> Any:
    """The model without its output layer."""
    backbone: Any = model.base_model
    return model.model if backbone is model and hasattr(model, "model") else backbone


def hidden_states(model: torch.nn.Module, ids_T: Tensor, layout: AttentionLayout, keep_K: Tensor) -> Tensor:
    """The input of the output layer ``(K, width)`` at flat positions ``keep_K``.

    A model without flat attention reads the rows of a :class:`PackedRows` padded on the right, which causal attention
    does not see.
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


class _BackboneOutput(BaseModelOutputWithPast):
    """A backbone's output with hidden states; any other attribute is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def head(model: torch.nn.Module, hidden_KD: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` of hidden states, with the model's scales and soft caps.

    Families apply these in the model's own ``forward``, after the output layer, so that method runs with a backbone
    that returns the hidden states.
    """
    backbone = backbone_of(model)
    output = _BackboneOutput(last_hidden_state=hidden_KD[None])  # type: ignore[arg-type]
    # An attribute of the instance hides the class's method, and is deleted again: the class itself stays as it is.
    backbone.forward = lambda *_, **__: output
    try:
        logits_KV: Tensor = model(inputs_embeds=hidden_KD[None], use_cache=False).logits[0]
        return logits_KV
    finally:
        del backbone.forward


def forward(model: torch.nn.Module, ids_T: Tensor, layout: AttentionLayout, keep_K: Tensor) -> Tensor:
    """Logits ``(K, vocabulary)`` at flat positions ``keep_K``."""
    if not is_flat(model):
        return head(model, hidden_states(model, ids_T, layout, keep_K))
    position_1T = layout.position_T[None]
    out = model(input_ids=ids_T[None], position_ids=position_1T, use_cache=False, logits_to_keep=keep_K, layout=layout)
    logits_KV: Tensor = out.logits[0]
    return logits_KV
