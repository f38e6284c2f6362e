"""A tiny model of a real family with its tokenizer, as a folder that the tests here share."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gagpo.sft.small_model import ModelShape, build

TEXTS = ["You stand at 12. Go to door 3.", "left", "right", "On the table 1, you see a mug 1 and a knife 2."] * 3
SHAPE = ModelShape(layers=1, width=64, heads=2, key_value_heads=1, feed_forward=32, context=512)


def save_qwen(folder, tied, seed=0):
    """Random weights with peaked distributions, so that errors show; heads of a size that vLLM's CPU build knows."""
    _, tokenizer = build(SHAPE, TEXTS, seed=0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=96,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
