"""Sizes of models that recipes and papers train, so that a plan needs no download. From each model's config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# hidden_size, intermediate_size, layers, heads, key-value heads, vocabulary, whether embeddings are tied
_QWEN2 = {
    "Qwen/Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen/Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen/Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen/Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen2.5-14B": (5120, 13824, 48, 40, 8, 152064, False),
    "Qwen/Qwen2.5-32B": (5120, 27648, 64, 40, 8, 152064, False),
}


def known_config(name: str) -> PreTrainedConfig | None:
    """The config of a model on the hub, its ``-Instruct`` form included; None if it is not in the table."""
    row = _QWEN2.get(name.removesuffix("-Instruct"))
    if row is None:
        return None
    from transformers import Qwen2Config

    width, feed_forward, layers, heads, key_value_heads, vocabulary, tied = row
    return Qwen2Config(
        hidden_size=width,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )
