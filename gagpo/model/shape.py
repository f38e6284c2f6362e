"""Sizes of a model, from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Shape:
    """A model's sizes.

    width: of the hidden state.
    feed_forward: width of one feed-forward block.
    experts: feed-forward blocks that one token passes.
    context: most tokens of a row.
    embeddings: parameters of the input embeddings and of an untied output layer.
    linear: parameters of the other linear layers' matrices.
    materialized: whether attention has to compute its scores as a whole matrix (soft caps, sinks).
    """

    parameters: int
    layers: int
    width: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    experts: int
    vocabulary: int
    context: int
    embeddings: int
    linear: int
    materialized: bool = False


def config_of(model: torch.nn.Module) -> PreTrainedConfig:
    """The config of a transformers model."""
    return model.config  # type: ignore[return-value]


def key_value_shape(config: PreTrainedConfig) -> tuple[int, int, int]:
    """Layers, key-value heads and head size of a language model's (text) config."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, heads, size


def sizes(config: PreTrainedConfig, trust_remote_code: bool = False) -> Shape:
    """Sizes of the causal language model of a config, counted on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM

    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    out, embedded = model.get_output_embeddings(), model.get_input_embeddings().weight
    matrices = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not out]
    layers, key_value_heads, head_size = key_value_shape(text)
    experts = getattr(text, "num_experts_per_tok", None) or 1
    width = text.hidden_size
    forward = getattr(text, "moe_intermediate_size", None) if experts > 1 else None
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=layers,
        width=width,
        heads=text.num_attention_heads,
        key_value_heads=key_value_heads,
        head_size=head_size,
        feed_forward=int(forward or getattr(text, "intermediate_size", None) or 4 * width),
        experts=experts,
        vocabulary=text.vocab_size,
        context=int(getattr(text, "max_position_embeddings", None) or 4096),
        embeddings=embedded.numel() + (0 if out is None or out.weight is embedded else out.weight.numel()),
        linear=sum(module.weight.numel() for module in matrices),
        materialized=bool(getattr(text, "attn_logit_softcapping", None))
        or any(name.endswith("sinks") for name, _ in model.named_parameters()),
    )
