"""Tokens per second with decoding steps recorded as CUDA graphs and without: one model of random weights, one GPU.

    python -m benchmarks.recorded [--sessions 256] [--turns 6] [--dtype bfloat16] [--device cuda]

The model has the shape of SmolLM2-135M. Every conversation begins with 300 tokens; each turn samples up to 16 and reads
60 more. Each side plays twice, and the second time counts. Also printed: how many responses are equal, and how far
the log-probabilities of equal ones differ. On a CPU nothing is recorded, so it only shows that both sides agree.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.model.dtypes import bound_kernels, dtype_of
from gagpo.model.flat import attention

VOCABULARY, FIRST, SEEN, STOPS = 49152, 300, 60, 6000  # every token below STOPS ends a response
SHAPE = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}

Said = dict[tuple[int, int], tuple[list[int], np.ndarray]]
"""Tokens and log-probabilities by conversation and turn."""


class NoTokenizer:
    """Stands in for a tokenizer; the tokens mean nothing."""

    eos_token_id, chat_template = 2, None

    def get_added_vocab(self) -> dict[str, int]:
        return {}


def make_model(dtype: str, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPE, intermediate_size=1536, vocab_size=VOCABULARY, tie_word_embeddings=True, initializer_range=0.05
    )
    model = LlamaForCausalLM(config).to(device, dtype_of(dtype)).eval()
    model.set_attn_implementation(attention.NAME)
    return model


def play(model: torch.nn.Module, recorded: bool, sessions: int, turns: int) -> tuple[Said, float]:
    """What was sampled, and tokens per second."""
    engine = TransformersEngine(model, NoTokenizer())
    engine._recorded, engine.stops = recorded, np.arange(STOPS)
    rng = np.random.default_rng(0)
    said: Said = {}
    begun = time.perf_counter()
    prompts = [rng.integers(STOPS, VOCABULARY, FIRST).astype(np.int32) for _ in range(sessions)]
    engine.submit([Request(i, ids, i) for i, ids in enumerate(prompts)], Sampling(max_tokens=16))
    turn = [0] * sessions
    while engine.under_way:
        new = []
        for request, response in engine.collect():
            one = request.session
            said[one, turn[one]] = (response.ids.tolist(), response.logprobs)
            turn[one] += 1
            if turn[one] == turns:
                engine.release(one)
                continue
            seed = 1000 * turn[one] + one
            seen = np.random.default_rng(seed).integers(STOPS, VOCABULARY, SEEN)
            ids = np.concatenate([request.prompt_ids, response.ids, seen]).astype(np.int32)
            new.append(Request(one, ids, seed))
        engine.submit(new, Sampling(max_tokens=16))
    return said, sum(len(ids) for ids, _ in said.values()) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what recorded decoding steps bring.")
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    bound_kernels()
    model = make_model(given.dtype, given.device)
    found = {}
    for recorded in (False, True):
        play(model, recorded, given.sessions, given.turns)
        found[recorded] = play(model, recorded, given.sessions, given.turns)
        print(f"{'recorded' if recorded else 'launched'}  {found[recorded][1]:8.0f} tokens/s", flush=True)
    (one, slow), (other, fast) = found[False], found[True]
    equal = [key for key in one if one[key][0] == other[key][0]]
    worst = max((float(np.abs(one[key][1] - other[key][1]).max()) for key in equal), default=float("nan"))
    print(f"{fast / slow:.2f} times as fast; {len(equal)} of {len(one)} responses equal, within {worst:.1e} nats")


if __name__ == "__main__":
    main()
