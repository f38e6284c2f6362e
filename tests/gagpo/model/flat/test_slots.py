"""Attention from the new tokens of many slots: every row as if it were alone, with little padding."""

import numpy as np
import pytest
import torch

from gagpo.model.flat import kernels
from gagpo.model.flat.kernels import PLAIN, LayerKind
from gagpo.model.flat.slots import SlotCache

HEADS, SHARED, SIZE = 4, 2, 8
SLOTS = np.array([5, 0, 1, 2, 4])
CACHED = np.array([3, 0, 60, 7, 30])
NEW = np.array([4, 9, 5, 1, 40])
KINDS = {
    "plain": PLAIN,
    "window": LayerKind(window=6),
    "cap": LayerKind(softcap=2.0),
    "sinks": LayerKind(sinks_H=torch.arange(HEADS, dtype=torch.float32)),
}


def filled_cache():
    cache = SlotCache(1, SHARED, SIZE, torch.float32, "cpu")
    cache.reserve(6, 100)
    generator = torch.Generator().manual_seed(0)
    for store in (cache.key[0], cache.value[0]):
        store.copy_(torch.randn(store.shape, generator=generator))
    return cache


def attended(slots, cached, new, kind, seed=1):
    """Outputs of the new tokens, which are the same for a row in whatever company it is read."""
    cache = filled_cache()
    cache.plan(slots, cached, new)
    rows = []
    for slot, count in zip(slots, new, strict=True):
        generator = torch.Generator().manual_seed(seed + int(slot))
        rows.append([torch.randn(int(count), heads, SIZE, generator=generator) for heads in (HEADS, SHARED, SHARED)])
    query, key, value = (torch.cat(tensors) for tensors in zip(*rows, strict=True))
    return cache.attend(0, query, key, value, 0.3, kind).split(new.tolist())


@pytest.mark.parametrize("worthwhile", [2**16, 0], ids=["one run", "runs of similar size"])
@pytest.mark.parametrize("new", [NEW, np.ones(5, np.int64)], ids=["reading", "a step"])
@pytest.mark.parametrize("name", KINDS)
def test_a_row_reads_as_if_it_were_alone(monkeypatch, name, new, worthwhile):
    alone = [
        attended(SLOTS[row : row + 1], CACHED[row : row + 1], new[row : row + 1], KINDS[name])[0] for row in range(5)
    ]
    monkeypatch.setattr(kernels, "WORTHWHILE", worthwhile)
    for output, expected in zip(attended(SLOTS, CACHED, new, KINDS[name]), alone, strict=True):
        torch.testing.assert_close(output, expected)


def test_one_long_conversation_does_not_lengthen_the_others(monkeypatch):
    scores = []
    fused = kernels.scaled_dot_product_attention

    def counted(query, key, *arguments, **options):
        scores.append(query.shape[0] * query.shape[2] * key.shape[2])
        return fused(query, key, *arguments, **options)

    monkeypatch.setattr(kernels, "scaled_dot_product_attention", counted)
    cache = SlotCache(1, SHARED, SIZE, torch.float32, "cpu")
    cache.reserve(16, 3000)
    cached = np.array([2400] + [400] * 15)
    new = np.full(16, 40)
    cache.plan(np.arange(16), cached, new)
    query, key = torch.randn(16 * 40, HEADS, SIZE), torch.randn(16 * 40, SHARED, SIZE)
    cache.attend(0, query, key, key, 0.3)
    assert sum(scores) < 1.2 * int((new * (cached + new)).sum())  # as one padded block: 4.3
