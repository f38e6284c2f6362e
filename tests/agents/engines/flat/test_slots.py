"""Decoding in fixed shapes gives the tokens that decoding in fitting ones does; graphs themselves need a GPU."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines import families
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.flat.kernels import bucket
from gagpo.agents.engines.flat.slots import SHORTEST, StaticDecoder, StaticStep
from gagpo.agents.engines.transformers import TransformersEngine, sample
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import choose_path


def engines(model, tokenizer):
    """One of each kind."""
    both = [TransformersEngine(model, tokenizer) for _ in range(2)]
    assert both[0]._static is None  # on a CPU
    both[1]._static = StaticDecoder(graphs=False)
    return both


def played(engine, vocabulary, seed=0, turns=4, longest=40, more=30):
    """Conversations that grow, end, and make room for others; every response."""
    engine.stops = np.arange(0, vocabulary // 6)
    rng = np.random.default_rng(seed)
    said, contexts, born = [], {}, 0
    for turn in range(turns):
        while len(contexts) < 7:
            contexts[born] = rng.integers(vocabulary // 6, vocabulary, rng.integers(2, longest)).astype(np.int32)
            born += 1
        chosen = [s for s in contexts if rng.random() < 0.7] or list(contexts)[:1]
        requests = [Request(s, contexts[s], 100 * turn + s) for s in chosen]
        for s, out in zip(chosen, engine.generate(requests, Sampling(max_tokens=9)), strict=True):
            said.append((s, out))
            read = rng.integers(vocabulary // 6, vocabulary, more).astype(np.int32)
            contexts[s] = np.concatenate([contexts[s], out.ids, read])
        for s in list(contexts):
            if rng.random() < 0.3:
                engine.release(s)
                del contexts[s]
    return said


def same(first, second):
    for (s, one), (other, two) in zip(first, second, strict=True):
        assert s == other and one.ids.tolist() == two.ids.tolist() and one.stopped == two.stopped
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-4)


def test_fixed_shapes_give_the_same_responses_over_many_turns(tiny):
    model, tokenizer = tiny
    fitting, fixed = engines(model, tokenizer)
    same(played(fitting, model.config.vocab_size), played(fixed, model.config.vocab_size))
    assert fixed._static._steps and all(s in range(1, 9) and n % SHORTEST == 0 for s, n in fixed._static._steps)


@pytest.mark.parametrize("name", ["Gemma 2", "gpt-oss", "Mistral with a window"])
def test_windows_caps_and_sinks_are_those_of_the_fitting_shapes(tiny, name):
    (family,) = [one for one in families.FAMILIES if one.name == name]
    model = families.tiny(family).eval()
    choose_path(name, model)
    fitting, fixed = engines(model, tiny[1])
    size = model.config.get_text_config().vocab_size
    same(*(played(engine, size, turns=3, longest=9, more=5) for engine in (fitting, fixed)))


def test_new_weights_and_sleep_drop_the_steps(tiny):
    model, tokenizer = tiny
    _, fixed = engines(model, tokenizer)
    played(fixed, model.config.vocab_size, turns=1)
    fixed.load_weights(named_tensors(model, merged=False))
    assert not fixed._static._steps
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(-1)
    fitting = TransformersEngine(model, tokenizer)
    same(played(fitting, model.config.vocab_size, 1, 2), played(fixed, model.config.vocab_size, 1, 2))
    fixed.sleep()
    assert not fixed._static._steps


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 10, 17, 100, 1000, 4097])
def test_sizes_are_few_and_a_quarter_too_large_at_most(count):
    assert count <= bucket(count) <= max(count + 1, 1.25 * count)
    assert bucket(bucket(count)) == bucket(count)
    assert bucket(count, 128) % 128 == 0
    assert len({bucket(n) for n in range(1, 1025)}) <= 8 + 4 * 7


def test_a_graph_is_captured_after_some_steps_and_replayed(tiny, monkeypatch):
    """Without a GPU a graph is played by what notes when it is made and runs nothing when it is replayed."""
    model, tokenizer = tiny
    calls = []

    class Graph:
        def replay(self):
            calls.append("replay")

    class Capture:
        def __init__(self, graph, pool):
            calls.append("capture")

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    _, fixed = engines(model, tokenizer)
    fixed._static = StaticDecoder(graphs=True)
    fixed.stops = np.array([-1])
    fixed.generate([Request(0, np.arange(30, 40, dtype=np.int32), 0)], Sampling(max_tokens=6))
    assert calls == ["capture", "replay", "replay", "replay"]  # five steps after the prompt, two to warm up


def test_a_step_that_cannot_be_captured_is_run_without_a_graph(tiny, monkeypatch, caplog):
    model, tokenizer = tiny
    fitting, fixed = engines(model, tokenizer)
    fixed._static = StaticDecoder(graphs=True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)

    def refused(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(StaticStep, "replay", refused)
    same(played(fitting, model.config.vocab_size, turns=2), played(fixed, model.config.vocab_size, turns=2))
    (record,) = caplog.records
    assert "not captured as a CUDA graph: operation not permitted" in record.message


def test_a_setting_that_is_none_is_named(tiny):
    with pytest.raises(ValueError, match=r"engine\.options\.compile is auto or never, got 'always'"):
        TransformersEngine(*tiny, compile="always")


def test_sums_in_float32_draw_the_same_tokens(monkeypatch):
    """What a GPU sums in; the sums of both lie within 1e-5, so that tokens differ where a draw falls between them."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(64, 5000, generator=generator)
    uniform, one = np.random.default_rng(0).random(64), np.ones(64)
    double, _ = sample(logits, uniform, one)
    monkeypatch.setattr(torch.Tensor, "double", lambda self: self)
    single, _ = sample(logits, uniform, one)
    assert (double != single).mean() <= 2 / 64
