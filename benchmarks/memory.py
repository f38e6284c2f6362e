"""Peak memory of an update with a real vocabulary: log-probabilities in chunks beside the plain way.

    python -m benchmarks.memory [--tokens 256 512] [--vocabulary 151936]

The plain way, kept here as the reference, makes the logits of all response tokens at once, takes their log-softmax and
their entropy, and lets autograd keep what it wants. Both take the same optimiser step on the same rows with a small
model under that vocabulary; memory is what torch has allocated at a time, weights included. Log-probabilities,
entropies and gradients of the two are compared, and the largest difference is printed; more than 1e-5 fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.allocated import Allocated
from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater
from gagpo.model import networks
from gagpo.model.flat import attention
from gagpo.model.logprobs import hidden_of, token_logprobs
from gagpo.model.microbatch import MicroBatch

VOCABULARY = 151_936  # Qwen2.5
TOLERANCE = 1e-5
PROMPT, ANSWER = 16, 64

LogProbs = Callable[..., tuple[Tensor, Tensor | None]]


def plain_logprobs(
    model: torch.nn.Module, batch: MicroBatch, entropy: str = "gradient", hidden_KD: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What :func:`gagpo.model.logprobs.token_logprobs` gives, with all logits at once."""
    hidden_KD = hidden_of(model, batch) if hidden_KD is None else hidden_KD
    logits_KV = attention.head(model, hidden_KD).float()
    if batch.temperature_U is not None:
        logits_KV = logits_KV / batch.temperature_U[:, None]
    logprob_KV = torch.log_softmax(logits_KV, -1)
    entropy_K = -(logprob_KV.exp() * logprob_KV).sum(-1)
    return logprob_KV.gather(-1, batch.target_U[:, None])[:, 0], entropy_K


def make_model(vocabulary: int) -> torch.nn.Module:
    """Two narrow layers under a wide vocabulary."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    config._attn_implementation = attention.NAME
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def make_rows(tokens: int, vocabulary: int) -> list[Row]:
    """Rows with ``tokens`` response tokens in all."""
    rng = np.random.default_rng(0)
    position_K = np.arange(PROMPT, PROMPT + ANSWER)
    old_K = np.full(ANSWER, -np.log(vocabulary), np.float32)
    rows = []
    for i in range(tokens // ANSWER):
        ids = rng.integers(0, vocabulary, PROMPT + ANSWER).astype(np.int32)
        rows.append(Row(ids, position_K, np.full(ANSWER, i), i * ANSWER + np.arange(ANSWER), old_K))
    return rows


@contextmanager
def taking(logprobs: LogProbs) -> Iterator[None]:
    """Updates take their log-probabilities from ``logprobs``."""
    before = networks.token_logprobs
    networks.token_logprobs = logprobs  # type: ignore[assignment]
    try:
        yield
    finally:
        networks.token_logprobs = before


def peak(logprobs: LogProbs, tokens: int, vocabulary: int) -> float:
    """Bytes at the peak of a second update, weights included."""
    model = make_model(vocabulary)
    updater = Updater(networks.Networks(model), torch.optim.AdamW(model.parameters(), lr=1e-5), load_algorithm("cispo"))
    updater.algorithm = updater.algorithm.model_copy(update={"entropy": 1e-3})  # so that entropy has a gradient too
    rows, credit = (
        make_rows(tokens, vocabulary),
        Credit(np.linspace(-1, 1, tokens), np.full(tokens // ANSWER, ANSWER), "token"),
    )
    with taking(logprobs):
        updater.update(rows, credit, np.random.default_rng(0))  # the optimiser makes its moments
        held = sum(p.nbytes for p in model.parameters())
        held += sum(x.nbytes for one in updater.optimizer.state.values() for x in one.values())
        with Allocated() as counted:
            updater.update(rows, credit, np.random.default_rng(0))
    return float(held + counted.peak)


def difference(tokens: int, vocabulary: int) -> float:
    """The largest difference between the two, of log-probabilities, entropies and gradients."""
    model = make_model(vocabulary)
    (batch,) = Packing(1_000_000).micro_batches(make_rows(tokens, vocabulary))
    found = []
    for logprobs in (token_logprobs, plain_logprobs):
        model.zero_grad(set_to_none=True)
        logprob_K, entropy_K = logprobs(model, batch, "gradient")
        assert entropy_K is not None
        (logprob_K.mean() + 1e-3 * entropy_K.mean()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([logprob_K.detach(), entropy_K.detach(), *(gradient.clone() for gradient in gradients)])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def measure(tokens: int, vocabulary: int) -> dict[str, Any]:
    """GB of either way and the largest difference between their values."""
    return {
        "tokens": tokens,
        "plain_GB": peak(plain_logprobs, tokens, vocabulary) / 1e9,
        "chunks_GB": peak(token_logprobs, tokens, vocabulary) / 1e9,
        "difference": difference(tokens, vocabulary),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the memory of an update.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    results = []
    print(f"{'tokens':>8} {'plain, GB':>10} {'chunks, GB':>11} {'difference':>11}   vocabulary {options.vocabulary:,}")
    for tokens in options.tokens:
        found = measure(tokens, options.vocabulary)
        results.append(found)
        print(
            f"{tokens:>8} {found['plain_GB']:>10.2f} {found['chunks_GB']:>11.2f} {found['difference']:>11.1e}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(found["difference"] > TOLERANCE for found in results))


if __name__ == "__main__":
    raise SystemExit(main())
