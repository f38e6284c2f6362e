"""Prefix trees: shared prefixes are read once, with the values and gradients of separate rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.model.flat import kernels, packed
from gagpo.model.flat.attention import hidden_states, is_flat
from gagpo.model.flat.packed import PackedRows, PackedTrees, build_branches
from tests.agents.engines.families import FAMILIES, tiny

ROWS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=9), min_size=1, max_size=8)


def arrays(rows):
    return [np.asarray(row, np.int32) for row in rows]


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_branches_hold_the_rows_and_shared_tokens_once(rows):
    ids_T, branches = build_branches(arrays(rows))
    for row, branch in zip(rows, branches, strict=True):
        assert ids_T[branch.path_L].tolist() == row
    beginnings = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    assert len(ids_T) == len(beginnings), "a token for each different beginning"
    reference = np.concatenate([branch.new_places for branch in branches])
    assert sorted(reference.tolist()) == list(range(len(ids_T)))


def rows_that_branch(rng, vocabulary):
    """Groups of rows with one prompt: some differ from later tokens on, one is a prefix of another, two are equal."""
    rows = []
    for _ in range(2):
        prompt = rng.integers(5, vocabulary, 12)
        first = np.concatenate([prompt, rng.integers(5, vocabulary, 20)])
        rows += [first, np.concatenate([first[:20], rng.integers(5, vocabulary, 7)]), first[:15], first.copy()]
        rows.append(np.concatenate([first[:26], rng.integers(5, vocabulary, 1)]))
    return [row.astype(np.int32) for row in rows]


def apart_and_together(model, rows, blank=0):
    """Hidden states after every token of every row, and all gradients, from packed rows and from trees."""
    ids_T, branches = build_branches(rows)
    blanks = np.full(blank, 1, np.int32)
    paths = torch.as_tensor(np.concatenate([branch.path_L for branch in branches]))
    weight = torch.randn(len(paths), model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    flat = torch.as_tensor(np.concatenate(rows), dtype=torch.long)
    tree = torch.as_tensor(np.concatenate([ids_T, blanks]), dtype=torch.long)
    results = []
    for ids, layout, keep in (
        (flat, PackedRows([len(row) for row in rows]), torch.arange(len(flat))),
        (tree, PackedTrees(branches, blank), paths),
    ):
        model.zero_grad()
        hidden = hidden_states(model, ids, layout, keep)
        (hidden * weight.to(hidden.dtype)).sum().backward()
        results.append([hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    return results


@pytest.mark.parametrize("blank", [0, 5])
@pytest.mark.parametrize("worthwhile", [1, 2**16])
def test_trees_give_the_results_of_separate_rows(tiny, monkeypatch, worthwhile, blank):
    monkeypatch.setattr(kernels, "WORTHWHILE", worthwhile)  # runs of like size, or one
    rows = rows_that_branch(np.random.default_rng(0), 300)
    assert sum(branch.new for branch in build_branches(rows)[1]) < 0.5 * sum(map(len, rows))
    for item, other in zip(*apart_and_together(tiny[0], rows, blank), strict=True):
        assert (other - item).norm() <= 2e-6 * item.norm()


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.kind in (
    "qwen2", "llama", "gemma2", "gemma3_text", "mistral", "gpt_oss", "qwen3_moe", "cohere2",
)], ids=lambda family: family.name)  # fmt: skip
def test_families_with_windows_caps_sinks_and_experts(family):
    model = tiny_of(family)
    rows = rows_that_branch(np.random.default_rng(1), 100)
    apart, together = apart_and_together(model, rows)
    for item, other in zip(apart, together, strict=True):
        assert (other - item).norm() <= 1e-5 * item.norm() + 1e-6  # these models' weights are large


def tiny_of(family):
    model = tiny(family)
    assert is_flat(model) or family.name
    if not is_flat(model):
        pytest.skip(f"{family.name} reads padded rows")
    return model


def test_trees_are_as_exact_in_half_precision_as_rows(tiny):
    rows = rows_that_branch(np.random.default_rng(2), 300)
    exact, _ = apart_and_together(tiny[0], rows)
    with torch.autocast("cpu", torch.bfloat16):
        apart, together = apart_and_together(tiny[0], rows)
    for full, item, other in zip(exact, apart, together, strict=True):
        assert (other - full).norm() <= 2 * (item - full).norm() + 0.01 * full.norm()


def test_the_ragged_kernel_gets_the_branches(monkeypatch):
    """Against the kernel's documentation: queries are the last of a row's keys, with causal attention."""

    def attend_ragged(query, key, value, edges, most, scale, window):
        out = []
        for (a, b), (c, d) in zip(*(zip(e[:-1].tolist(), e[1:].tolist(), strict=True) for e in edges), strict=True):
            assert b - a <= most[0] and d - c <= most[1]
            score = torch.einsum("qhd,khd->hqk", query[a:b], key[c:d]) * scale
            location = torch.arange(d - c - (b - a), d - c)[:, None]
            observed = torch.arange(d - c) <= location
            if window:
                observed &= torch.arange(d - c) > location - window
            out.append(torch.einsum("hqk,khd->qhd", score.masked_fill(~observed, -torch.inf).softmax(-1), value[c:d]))
        return torch.cat(out)

    monkeypatch.setattr(packed, "attend_ragged", attend_ragged)
    _, branches = build_branches(rows_that_branch(np.random.default_rng(3), 300))
    layout = PackedTrees(branches, blank=2)
    segments = [torch.randn(layout._tokens, 2, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    ragged = packed._Ragged(layout._branches, layout._tokens, torch.device("cpu"))
    for window in (0, 4):
        layer_kind = packed.LayerKind(window or None)
        torch.testing.assert_close(
            ragged.attend(*segments, 0.3, window)[:-2],
            layout.attend(0, *segments, 0.3, layer_kind)[:-2],
            atol=1e-5,
            rtol=1e-4,
        )


@pytest.mark.parametrize("shared", [False, True])
def test_a_gpu_reads_rows_without_padding(monkeypatch, shared):
    """Mock only: tensors claim to be on a GPU, and the kernel records its arguments."""
    requests = []

    def noted(query, key, value, edges, most, scale, window):
        requests.append((len(query), len(key), window))
        return query

    monkeypatch.setattr(packed, "attend_ragged", noted)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    rows = rows_that_branch(np.random.default_rng(3), 300)
    _, branches = build_branches(rows, share=shared)
    layout = PackedTrees(branches)
    reference, read = (
        sum(branche.new for branche in branches),
        sum(len(branche.path_L) for branche in branches if branche.new),
    )
    assert (reference < read) == shared

    def attend(dtype, size, value_size, kind):
        requests.clear()
        segments = [torch.randn(layout._tokens, 2, branche, dtype=dtype) for branche in (size, size, value_size)]
        layout.attend(0, *segments, 0.3, kind)
        return requests

    for window in (None, 4):
        assert attend(torch.bfloat16, 8, 8, packed.LayerKind(window)) == [(reference, read, window or 0)]
    assert not attend(torch.float32, 8, 8, packed.LayerKind())
    assert not attend(torch.bfloat16, 512, 512, packed.LayerKind())
    assert not attend(torch.bfloat16, 12, 8, packed.LayerKind())
    assert not attend(torch.bfloat16, 8, 8, packed.LayerKind(softcap=2.0))
