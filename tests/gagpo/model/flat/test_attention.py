"""Flat attention equals the model's own attention."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from gagpo.model.flat import kernels
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.flat.slots import SlotCache
from gagpo.sft.small_model import ModelShape, build
from tests.rejections import rejects


def own_logits(model, rows):
    """The reference: each row alone through transformers' eager attention."""
    config = copy.deepcopy(model.config)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        return torch.cat([plain(row[None]).logits[0] for row in rows])


def rows_of(lengths, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("lengths", [[5], [1, 1], [7, 30, 12], [3, 3, 3]])
def test_packed_rows_equal_rows_alone(tiny, lengths):
    model, _ = tiny
    rows = rows_of(lengths, model.config.vocab_size)
    layout = PackedRows(lengths)
    with torch.no_grad():
        logits = forward(model, torch.cat(rows), layout, torch.arange(sum(lengths)))
    torch.testing.assert_close(logits, own_logits(model, rows), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lengths", [[1], [128], [129, 128, 127], [300, 7], [290, 260, 256]])
def test_blocks_of_queries_in_bfloat16_are_plain_attention(lengths):
    """Rows shorter, as long and longer than a block; values and gradients against float32 on single rows."""
    generator = torch.Generator().manual_seed(1)
    tokens, grouped = sum(lengths), {"is_causal": True, "scale": 0.25, "enable_gqa": True}
    shapes = ((tokens, 4, 16), (tokens, 2, 16), (tokens, 2, 16))
    segments = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]
    exact = [segment.detach().float().requires_grad_() for segment in segments]
    out = PackedRows(lengths).attend(0, *segments, 0.25)
    rows = [
        [x.transpose(0, 1) for x in row] for row in zip(*(segment.split(lengths) for segment in exact), strict=True)
    ]
    expected = torch.cat([scaled_dot_product_attention(*row, **grouped).transpose(0, 1) for row in rows])
    weight = torch.randn(out.shape, generator=generator)
    (out.float() * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.03)
    for segment, reference in zip(segments, exact, strict=True):
        assert (segment.grad.float() - reference.grad).norm() <= 0.02 * reference.grad.norm()


def test_gradients_do_not_cross_rows(tiny):
    model, _ = tiny
    rows = rows_of([4, 6], model.config.vocab_size)
    layout = PackedRows([4, 6])
    embedded = model.get_input_embeddings()(torch.cat(rows)).detach().requires_grad_()
    out = model(
        inputs_embeds=embedded[None], position_ids=layout.position_T[None], use_cache=False, layout=layout
    ).logits[0]
    out[7].sum().backward()
    touched = embedded.grad.abs().sum(-1) > 0
    assert touched.tolist() == [False] * 4 + [True] * 4 + [False] * 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5), st.randoms())
def test_a_cache_filled_in_two_parts_equals_one_pass(parts, random):
    shape = ModelShape(layers=2, width=16, heads=2, key_value_heads=1, feed_forward=16, context=64)
    model, _ = build(shape, ["a b c"], seed=1)
    model.eval()
    first, second = np.array(parts).T
    rows = rows_of((first + second).tolist(), model.config.vocab_size)
    slots = list(range(len(parts)))
    random.shuffle(slots)
    cache = SlotCache(2, 1, 8, torch.float32, "cpu")
    cache.reserve(len(parts), 20)
    with torch.no_grad():
        cache.plan(np.array(slots), np.zeros(len(parts), int), first)
        forward(model, torch.cat([row[:n] for row, n in zip(rows, first, strict=True)]), cache, torch.tensor([0]))
        cache.plan(np.array(slots), first, second)
        ids = torch.cat([row[n:] for row, n in zip(rows, first, strict=True)])
        logits = forward(model, ids, cache, torch.arange(int(second.sum())))
    expected, locations = own_logits(model, rows), []
    for start, n, m in zip(np.cumsum(first + second) - first - second, first, second, strict=True):
        locations += range(start + n, start + n + m)
    torch.testing.assert_close(logits, expected[locations], atol=1e-4, rtol=1e-4)


def test_growing_and_copying_keep_the_contents():
    cache = SlotCache(1, 1, 4, torch.float32, "cpu")
    cache.reserve(2, 10)
    cache.key[0][1, :, :10] = torch.arange(40.0).reshape(1, 10, 4)
    cache.reserve(3, 500)
    assert cache.capacity >= 500 and cache.key[0].shape[0] == 3
    cache.share(1, [0], 10)
    assert torch.equal(cache.key[0][0, 0, :10], torch.arange(40.0).reshape(10, 4))


def test_growing_drops_the_slots_that_are_no_longer_used():
    """One long conversation is left of a hundred: it does not take memory for a hundred long ones."""
    cache = SlotCache(1, 1, 4, torch.float32, "cpu")
    cache.reserve(100, 10)
    cache.key[0][0, :, :10] = torch.arange(40.0).reshape(1, 10, 4)
    cache.reserve(1, 500)
    assert cache.key[0].shape[0] == cache.slots == 1
    assert torch.equal(cache.key[0][0, 0, :10], torch.arange(40.0).reshape(10, 4))
    cache.reserve(3, 20)
    assert cache.key[0].shape[0] == 3 and cache.capacity >= 500


def test_calling_the_model_without_a_layout_is_refused(tiny):
    model, _ = tiny
    with rejects(ValueError, "attention.forward"):
        model(torch.tensor([[1, 2]]), use_cache=False)


@pytest.mark.parametrize("lengths", [[5, 6, 7], [3, 40, 60, 61, 120], [120, 3, 90, 4], [200] * 3])
def test_rows_of_different_lengths_are_read_in_runs(tiny, monkeypatch, lengths):
    model, _ = tiny
    monkeypatch.setattr(kernels, "WORTHWHILE", 1000)
    ids = torch.as_tensor(np.random.default_rng(0).integers(5, 300, sum(lengths)))
    results, runs = [], []
    for uneven in (1.2, 1e9):
        monkeypatch.setattr(kernels, "UNEVEN", uneven)
        model.zero_grad()
        layout = PackedRows(lengths)
        logits = forward(model, ids, layout, torch.arange(len(ids)))
        logits.square().mean().backward()
        assert layout._padded is not None
        runs.append(len(layout._padded.shapes))
        results.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
    assert runs[1] == 1 and (runs[0] > 1) == (max(lengths) > 2 * min(lengths))
    for item, other in zip(*results, strict=True):
        torch.testing.assert_close(item, other, atol=1e-5, rtol=1e-4)
