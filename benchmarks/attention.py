"""Causal attention of a training step on a CPU in bfloat16: PyTorch's fused kernel, one written-out product, blocks.

    python -m benchmarks.attention [--lengths 64 200 400 1000 2000 4000] [--rounds 7]

All three read the same rows forward and backward, taking turns; the figures are medians of processor time, as ratios
to the fused kernel. Blocks are what :mod:`gagpo.model.flat.kernels` uses for rows in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gagpo.model.flat import kernels
from gagpo.model.flat.packed import PackedRows

TOKENS, HEADS, SHARED, SIZE = 4000, 6, 2, 32
BLOCK = kernels.BLOCK


def fused(parts: list[Tensor], lengths: list[int]) -> Tensor:
    query, key, value = (part.view(len(lengths), lengths[0], -1, SIZE).transpose(1, 2) for part in parts)
    out = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, HEADS, SIZE)


def blocks(parts: list[Tensor], lengths: list[int], queries: int) -> Tensor:
    kernels.BLOCK, kernels.SMALL_SCORES = queries, 2**62
    return PackedRows(lengths).attend(0, *parts, SIZE**-0.5)


def seconds(way: str, length: int, generator: torch.Generator) -> float:
    """Processor time of one pass forward and backward over some 4,000 tokens in rows of ``length``."""
    lengths = [length] * max(1, TOKENS // length)
    shapes = [(sum(lengths), heads, SIZE) for heads in (HEADS, SHARED, SHARED)]
    parts = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]
    begin = time.process_time()
    out = fused(parts, lengths) if way == "fused" else blocks(parts, lengths, 2**62 if way == "whole" else BLOCK)
    out.sum().backward()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention on a CPU.")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 200, 400, 1000, 2000, 4000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    found = {}
    print(f"{'row':>6} {'fused ms':>9} {'whole':>7} {'blocks':>7}")
    for length in given.lengths:
        taken: dict[str, list[float]] = {"fused": [], "whole": [], "blocks": []}
        for round_ in range(given.rounds + 1):
            for way, times in taken.items():
                spent = seconds(way, length, generator)
                if round_:
                    times.append(spent)
        middle = {way: statistics.median(times) for way, times in taken.items()}
        found[length] = {way: middle["fused"] / spent for way, spent in middle.items()} | {"fused_s": middle["fused"]}
        whole, parts = found[length]["whole"], found[length]["blocks"]
        print(f"{length:6d} {1e3 * middle['fused']:9.1f} {whole:6.2f}x {parts:6.2f}x", flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
