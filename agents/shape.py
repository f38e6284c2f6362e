"""The sizes of a model, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model's sizes. experts: feed-forward parts that one token passes; feed_forward: width of each."""

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


def sizes(config: Any, trust_remote_code: bool = False) -> Shape:
    """Sizes of the causal language model of a transformers config; parameters are counted on one without storage."""
    import torch
    from transformers import AutoModelForCausalLM

    text: Any = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    heads = text.num_attention_heads
    experts = getattr(text, "num_experts_per_tok", None) or 1
    width = text.hidden_size
    forward = getattr(text, "moe_intermediate_size", None) if experts > 1 else None
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        width=width,
        heads=heads,
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or width // heads,
        feed_forward=int(forward or getattr(text, "intermediate_size", None) or 4 * width),
        experts=experts,
        vocabulary=text.vocab_size,
        context=int(getattr(text, "max_position_embeddings", None) or 4096),
    )
