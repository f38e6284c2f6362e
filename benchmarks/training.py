"""Training tokens per second beside a bare forward and backward pass of the same model on the same rows.

    python -m benchmarks.training [--config configs/alfworld-small.yaml] [--rounds 5] [--minibatches 1]
    python -m benchmarks.training --config configs/alfworld-smollm2.yaml --model data/models/smollm2-135m --episodes 8

Both read the rows without padding. The bare pass finds its micro-batches made and takes the mean log-probability of the
responses as its loss; training makes the micro-batches, measures entropy, computes the algorithm's loss and metrics,
clips the gradient and steps. Where sampler and trainer compute in different precisions, a scoring pass over all but
the first mini-batch comes on top (``algorithm.correction: recompute``); its rate stands beside. The rows are as in
ALFWorld: ten turns of some twenty tokens read and four said. All take turns in one process; processor time, so other
work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.dtypes import autocast
from gagpo.model.loading import load_model
from gagpo.model.logprobs import token_logprobs
from gagpo.model.networks import Networks
from gagpo.objectives import Correction
from gagpo.settings import RunSettings, load
from gagpo.settings.machine import with_machine_formats
from gagpo.sft.small_model import ModelShape, create, shape_for, train_tokenizer

TARGET = 0.9


def make_rows(count: int, vocabulary: int, rng: np.random.Generator) -> list[Row]:
    """Episodes of 4 to 15 turns after instructions of 80 tokens, one row each."""
    rows, turns_before, tokens_before = [], 0, 0
    for _ in range(count):
        turns = int(rng.integers(4, 16))
        length, places, numbers = 80, [], []
        for turn in range(turns):
            length += int(rng.integers(12, 30))
            places += range(length, length + 4)
            numbers += [turns_before + turn] * 4
            length += 4
        rows.append(
            Row(
                rng.integers(5, vocabulary, length).astype(np.int32),
                np.array(places),
                np.array(numbers),
                tokens_before + np.arange(4 * turns),
                np.full(4 * turns, -6.0, np.float32),
            )
        )
        turns_before, tokens_before = turns_before + turns, tokens_before + 4 * turns
    return rows


def new_model(settings: RunSettings) -> torch.nn.Module:
    """A small model of random weights."""
    shape = shape_for(settings.sft.model) if settings.sft else ModelShape()
    return create(shape, train_tokenizer(["take mug 1 from shelf 2"] * 9, 300), seed=0)


def measure(
    settings: RunSettings, model: torch.nn.Module, episodes: int, rounds: int, minibatches: int | None = None
) -> dict[str, float]:
    """Median tokens per second of either, and their ratio round by round."""
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    rng = np.random.default_rng(0)
    rows = make_rows(episodes, model.get_input_embeddings().num_embeddings, rng)
    training = settings.training
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    plain, scoring = (
        Updater(
            Networks(model, autocast=lambda: autocast(settings.device, training.dtype)),
            optimizer,
            settings.algorithm.model_copy(update={"correction": Correction(name=correction)}),
            UpdateSettings(
                minibatches=minibatches or training.minibatches, packing=Packing(training.microbatch_tokens)
            ),
        )
        for correction in ("none", "recompute")
    )
    turns = int(rows[-1].turn_K[-1]) + 1
    credit = Credit(rng.standard_normal(turns), np.full(turns, 4))
    made = list(Packing(training.microbatch_tokens).micro_batches(rows))
    tokens = sum(micro.tokens for micro in made)

    def bare() -> None:
        for micro in made:
            with autocast(settings.device, settings.training.dtype):
                loss = -token_logprobs(model, micro, entropy="none")[0].mean()
            loss.backward()
        model.zero_grad(set_to_none=True)

    def trained() -> None:
        plain.update(rows, credit, rng)

    def scored() -> None:
        scoring.update(rows, credit, rng)

    bare(), trained()  # the first of each makes buffers
    triples = [tuple(tokens / _seconds(work) for work in (bare, trained, scored)) for _ in range(rounds)]
    bare_rate, trained_rate, scored_rate = np.median(triples, axis=0)
    ratios = [b / a for a, b, _ in triples]
    return {
        "tokens": tokens,
        "bare_tokens_per_s": round(float(bare_rate)),
        "trained_tokens_per_s": round(float(trained_rate)),
        "scored_too_tokens_per_s": round(float(scored_rate)),
        "ratio": round(float(np.median(ratios)), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
    }


def _seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure training beside a bare forward and backward pass.")
    parser.add_argument("--config", type=Path, default=Path("configs/alfworld-small.yaml"))
    parser.add_argument("--model", help="a model folder; by default a small model of random weights")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minibatches", type=int, help="optimiser steps of an update; the config's by default")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    settings = with_machine_formats(load(options.config))
    model = load_model(options.model) if options.model else new_model(settings)
    result = measure(settings, model, options.episodes, options.rounds, options.minibatches)
    print("\n".join(f"{key:24} {value:>12,}" for key, value in result.items()))
    print(f"target: at least {TARGET} of the bare rate, {'met' if result['ratio'] >= TARGET else 'missed'}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["ratio"] < TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
