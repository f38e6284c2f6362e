"""Soft caps and sinks, a block of queries at a time: same results, memory linear in tokens."""

import pytest
import torch

from benchmarks.allocated import Allocated
from gagpo.model.flat import kernels
from gagpo.model.flat.kernels import CausalAttention, LayerKind, bucket

HEADS, SHARED, SIZE = 4, 2, 8
KINDS = {
    "plain": kernels.PLAIN,
    "window": LayerKind(window=7),
    "cap": LayerKind(softcap=2.0),
    "cap and window": LayerKind(window=40, softcap=2.0),
    "sinks": LayerKind(sinks_H=torch.zeros(HEADS)),
    "sinks and window": LayerKind(window=3, sinks_H=torch.zeros(HEADS)),
}


def parts_of(rows, queries, keys, kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, HEADS, queries, SIZE), (rows, SHARED, keys, SIZE), (rows, SHARED, keys, SIZE))
    result = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    if kind.sinks_H is not None:
        result.append(torch.randn(HEADS, generator=generator, dtype=torch.float64).requires_grad_())
    return result


def plainly(query, key, value, sinks, before, kind, scale):
    """One query after the other, from the definition."""
    rows, heads, queries, _ = query.shape
    keys, out = key.shape[2], []
    for row in range(rows):
        for head in range(heads):
            shared = head * SHARED // HEADS
            for location in range(queries):
                position = min(before[row] + location, keys - 1)
                first = 0 if kind.window is None else max(0, position - kind.window + 1)
                score = (key[row, shared, first : position + 1] @ query[row, head, location]) * scale
                if kind.softcap is not None:
                    score = kind.softcap * torch.tanh(score / kind.softcap)
                if sinks is not None:
                    score = torch.cat([score, sinks[head : head + 1]])
                weight = score.softmax(-1)[: position + 1 - first]
                out.append(weight @ value[row, shared, first : position + 1])
    return torch.stack(out).view(rows, heads, queries, -1)


@pytest.mark.parametrize("kept", [2**40, 0], ids=["kept", "made again"])
@pytest.mark.parametrize(
    "before, queries, keys", [([0], 50, 50), ([0, 30], 45, 75), ([70, 61], 20, 90), ([5, 0], 1, 6)]
)
@pytest.mark.parametrize("name", KINDS)
def test_blocks_equal_the_definition_of_attention(monkeypatch, name, before, queries, keys, kept):
    monkeypatch.setattr(kernels, "BLOCK", 16)
    monkeypatch.setattr(kernels, "FUSED_BLOCK", 16)
    monkeypatch.setattr(kernels, "KEPT_SCORES", kept)
    type_name = KINDS[name]
    query, key, value, *sinks = segments = parts_of(len(before), queries, keys, type_name)
    layer_kind = LayerKind(type_name.window, type_name.softcap, sinks[0] if sinks else None)
    results = CausalAttention(before, queries, keys)(query, key, value, 0.3, layer_kind)
    expected = plainly(query, key, value, sinks[0] if sinks else None, before, type_name, 0.3)
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(results.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grad = torch.autograd.grad((results * weight).sum(), segments)
    reference = torch.autograd.grad((expected * weight).sum(), segments)
    for item, other in zip(grad, reference, strict=True):
        torch.testing.assert_close(item, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 7])
def test_stacked_heads_equal_heads_in_groups(window):
    """GPUs take this path; the arithmetic is the same on a CPU."""
    query, key, value = parts_of(2, 20, 90, kernels.PLAIN)
    attention = CausalAttention([70, 61], 20, 90)
    grouped = attention(query, key, value, 0.3, LayerKind(window))
    mask = attention._visible_keys(window)[:, None]
    stacked = attention._fused_stacked(query, key, value, 0.3, mask)
    torch.testing.assert_close(stacked, grouped)


def test_a_long_row_after_a_short_beginning_computes_few_hidden_scores(monkeypatch):
    """A row whose first tokens are shared needs a mask, with which the fused kernel computes hidden scores too."""
    tokens, before = 2048, 64
    query, key, value = (part.float() for part in parts_of(1, tokens - before, tokens, kernels.PLAIN))
    scores = []
    fused = kernels.scaled_dot_product_attention

    def counted(query, key, *arguments, **options):
        scores.append(query.shape[2] * key.shape[2])
        return fused(query, key, *arguments, **options)

    monkeypatch.setattr(kernels, "scaled_dot_product_attention", counted)
    CausalAttention([before], tokens - before, tokens)(query, key, value, 0.3)
    visible = sum(range(before + 1, tokens + 1))
    assert sum(scores) < 1.15 * visible  # the whole row at once: 1.95


@pytest.mark.parametrize("name", ["cap", "sinks and window"])
def test_memory_grows_with_tokens_and_not_with_their_square(name):
    peaks = []
    for tokens in (512, 2048):
        type_name = KINDS[name]
        segments = [segment.float().detach().requires_grad_() for segment in parts_of(1, tokens, tokens, type_name)][:3]
        attention = CausalAttention([0], tokens, tokens)
        with Allocated() as counted:
            attention(*segments, 0.3, type_name).sum().backward()
        peaks.append(counted.peak)
    assert peaks[1] < 6 * peaks[0]  # sixteen times the scores
    assert peaks[1] < 2**20 * 50  # all scores of four heads at once would take 67 MB, several times over


def test_buckets_are_few_and_at_most_a_quarter_too_large():
    for count in (1, 2, 3, 5, 8, 9, 10, 17, 100, 1000, 4097):
        assert count <= bucket(count) <= max(count + 1, 1.25 * count)
        assert bucket(bucket(count)) == bucket(count)
    assert len({bucket(n) for n in range(1, 1025)}) <= 8 + 4 * 7
