"""The engine's tokens and log-probabilities are the model's, independent of batch and cache."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import TransformersEngine, sample
from gagpo.model.flat.attention import forward
from gagpo.model.flat.packed import PackedRows
from gagpo.model.weights import named_tensors
from tests.rejections import rejects


def recomputed(model, prompt_ids, response_ids, temperature=1.0):
    """Log-probabilities of a response by one plain forward pass over the whole row."""
    ids = torch.as_tensor(np.concatenate([prompt_ids, response_ids])).long()
    layout = PackedRows([len(ids) - 1])
    keep = torch.arange(len(prompt_ids) - 1, len(ids) - 1)
    with torch.no_grad():
        logits = forward(model, ids[:-1], layout, keep) / temperature
    return logits.log_softmax(-1)[torch.arange(len(response_ids)), ids[len(prompt_ids) :]].numpy()


def prompts(rng, count, vocabulary, longest=40):
    return {i: rng.integers(300, vocabulary, rng.integers(2, longest)).astype(np.int32) for i in range(count)}


@pytest.mark.parametrize("recorded", [False, True])
def test_logprobs_equal_the_models_over_many_turns(tiny, recorded):
    """recorded: the padded steps of a GPU, for which new requests wait; on a CPU they are computed every time."""
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    engine._recorded = recorded
    engine.stops = np.arange(0, 60)  # stops often, so responses have many lengths
    rng = np.random.default_rng(0)
    contexts = prompts(rng, 12, model.config.vocab_size)
    lengths = set()
    for turn in range(5):
        chosen = [s for s in contexts if rng.random() < 0.7] or list(contexts)[:1]
        requests = [Request(s, contexts[s], turn * 100 + s) for s in chosen]
        for s, out in zip(chosen, engine.generate(requests, Sampling(max_tokens=7)), strict=True):
            np.testing.assert_allclose(out.logprobs, recomputed(model, contexts[s], out.ids), atol=2e-4)
            assert out.stopped == (out.ids[-1] < 60) and (out.ids[:-1] >= 60).all()
            lengths.add(len(out.ids))
            more = rng.integers(300, model.config.vocab_size, rng.integers(1, 9)).astype(np.int32)
            contexts[s] = np.concatenate([contexts[s], out.ids, more])
        for s in list(contexts):
            if rng.random() < 0.2:  # some episodes end
                engine.release(s)
                del contexts[s]
    assert len(lengths) > 3


def test_a_model_that_cannot_be_recorded_samples_without(tiny, monkeypatch):
    model, tokenizer = tiny
    requests = [Request(s, ids, s) for s, ids in prompts(np.random.default_rng(5), 4, model.config.vocab_size).items()]
    expected = TransformersEngine(model, tokenizer).generate(requests, Sampling(max_tokens=6))
    engine = TransformersEngine(model, tokenizer)
    engine._recorded = True

    def waits(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(engine._steps, "_compute", waits)
    for out, item in zip(engine.generate(requests, Sampling(max_tokens=6)), expected, strict=True):
        assert out.ids.tolist() == item.ids.tolist()


def test_a_response_does_not_depend_on_the_batch(tiny):
    model, tokenizer = tiny
    contexts = prompts(np.random.default_rng(1), 9, model.config.vocab_size)
    requests = [Request(s, ids, s) for s, ids in contexts.items()]
    together = TransformersEngine(model, tokenizer).generate(requests, Sampling(max_tokens=6))
    for request, expected in zip(requests, together, strict=True):
        alone = TransformersEngine(model, tokenizer).generate([request], Sampling(max_tokens=6))[0]
        assert alone.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(alone.logprobs, expected.logprobs, atol=1e-4)


def test_a_changed_prompt_is_read_from_where_it_differs(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    first = np.arange(300, 320, dtype=np.int32) % model.config.vocab_size
    engine.generate([Request(0, first, 0)], Sampling(max_tokens=3))
    other = first.copy()
    other[10] = 299
    out = engine.generate([Request(0, other, 1)], Sampling(max_tokens=3))[0]
    np.testing.assert_allclose(out.logprobs, recomputed(model, other, out.ids), atol=2e-4)


def test_each_request_may_have_its_own_temperature(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    ids = np.arange(300, 310, dtype=np.int32) % model.config.vocab_size
    hot, cold = engine.generate([Request(0, ids, 3, 1.7), Request(1, ids, 3, 0.4)], Sampling(max_tokens=4))
    np.testing.assert_allclose(hot.logprobs, recomputed(model, ids, hot.ids, 1.7), atol=2e-4)
    np.testing.assert_allclose(cold.logprobs, recomputed(model, ids, cold.ids, 0.4), atol=2e-4)


def test_new_weights_are_used_after_refresh(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    ids = np.arange(300, 310, dtype=np.int32) % model.config.vocab_size
    engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    engine.load_weights(named_tensors(engine.model))
    out = engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))[0]
    np.testing.assert_allclose(out.logprobs, recomputed(model, ids, out.ids), atol=2e-4)


def test_misuse_is_named(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer, max_length=16)
    ids = np.arange(300, 310, dtype=np.int32) % model.config.vocab_size
    with rejects(ValueError, "18 tokens", "16", key="max_tokens"):
        engine.generate([Request(0, ids, 0)], Sampling(max_tokens=8))
    with rejects(ValueError, key="session"):
        engine.generate([Request(0, ids, 0), Request(0, ids, 1)], Sampling(max_tokens=2))
    assert engine.generate([], Sampling()) == []


def test_sampling_inverts_the_cumulative_distribution():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(4, 1)
    uniform = np.array([0.1, 0.3, 0.69, 0.71])
    tokens, logprobs = sample(logits, uniform, np.ones(4))
    assert tokens.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(np.exp(logprobs), [0.2, 0.5, 0.5, 0.3], rtol=1e-6)


def test_temperature_zero_is_greedy():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).repeat(3, 1)
    greedy, _ = sample(logits, np.array([0.01, 0.5, 0.99]), np.zeros(3))
    assert greedy.tolist() == [1, 1, 1]


def test_frequencies_follow_the_probabilities():
    rng = np.random.default_rng(0)
    logits = torch.log(torch.tensor([[0.05, 0.15, 0.8]])).repeat(4000, 1)
    tokens, _ = sample(logits, rng.random(4000), np.full(4000, 1.0))
    np.testing.assert_allclose(np.bincount(tokens) / 4000, [0.05, 0.15, 0.8], atol=0.025)


def test_requests_that_join_others_get_the_same_responses(tiny):
    """Continuous batching: new requests join those under way, and releasing a session moves another slot."""
    model, tokenizer = tiny
    contexts = prompts(np.random.default_rng(3), 14, model.config.vocab_size)
    requests = [Request(s, ids, s) for s, ids in contexts.items()]
    lengths = {s: 2 + s for s in contexts}
    alone = {
        r.session: TransformersEngine(model, tokenizer).generate([r], Sampling(max_tokens=lengths[r.session]))[0]
        for r in requests
    }
    engine = TransformersEngine(model, tokenizer)
    waiting, order, observed = list(requests), [], {}
    while len(observed) < len(requests):
        for request in (waiting.pop(0) for _ in range(min(3, len(waiting)))):
            engine.submit([request], Sampling(max_tokens=lengths[request.session]))
        for request, response in engine.collect(0.0):
            observed[request.session] = response
            order.append(request.session)
            engine.release(request.session)
    assert order != sorted(order) or len(order) == 14
    for session, response in observed.items():
        assert response.ids.tolist() == alone[session].ids.tolist()
        np.testing.assert_allclose(response.logprobs, alone[session].logprobs, atol=1e-4)
    assert engine.collect(None) == []


def test_a_shared_prompt_is_read_once(tiny, monkeypatch):
    model, tokenizer = tiny
    rng = np.random.default_rng(7)
    item, other = (rng.integers(300, model.config.vocab_size, n).astype(np.int32) for n in (20, 33))
    requests = [Request(s, ids, s) for s, ids in enumerate([item, other, item, item, other, item[:9]])]
    apart = [
        TransformersEngine(model, tokenizer).generate([request], Sampling(max_tokens=5))[0] for request in requests
    ]
    engine = TransformersEngine(model, tokenizer)
    read, prefill = [], engine._prefill
    monkeypatch.setattr(
        engine,
        "_prefill",
        lambda rows, *rest: (read.append([len(r.request.prompt_ids) for r in rows]), prefill(rows, *rest))[1],
    )
    contexts = {}
    for request, out, alone in zip(requests, engine.generate(requests, Sampling(max_tokens=5)), apart, strict=True):
        assert out.ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(out.logprobs, alone.logprobs, atol=1e-4)
        contexts[request.session] = np.concatenate([request.prompt_ids, out.ids, [301, 302]]).astype(np.int32)
    assert read == [[20, 33, 9]]
    # Later turns go on from what each of them has said.
    later = [Request(s, ids, 50 + s) for s, ids in contexts.items()]
    for request, out in zip(later, engine.generate(later, Sampling(max_tokens=5)), strict=True):
        np.testing.assert_allclose(out.logprobs, recomputed(model, request.prompt_ids, out.ids), atol=2e-4)
    assert len(read[1]) == 6


def test_a_shared_history_is_read_once(tiny, monkeypatch):
    """Greedy episodes of a group share their history until the third one sees something else."""
    model, tokenizer = tiny
    rng = np.random.default_rng(8)
    engine, read = TransformersEngine(model, tokenizer), []
    prefill = engine._prefill

    def counted(rows, slot_B, start_B):
        read.append(sum(len(row.request.prompt_ids) for row in rows) - int(np.sum(start_B)))
        return prefill(rows, slot_B, start_B)

    monkeypatch.setattr(engine, "_prefill", counted)
    prompt = rng.integers(300, model.config.vocab_size, 15).astype(np.int32)
    contexts = dict.fromkeys(range(3), prompt)
    for turn in range(4):
        requests = [Request(s, ids, 10 * turn + s) for s, ids in contexts.items()]
        for request, out in zip(requests, engine.generate(requests, Sampling(0.0, max_tokens=4)), strict=True):
            np.testing.assert_allclose(out.logprobs, recomputed(model, request.prompt_ids, out.ids), atol=2e-4)
            observed = [301, 302, 303 + (turn > 0 and request.session == 2)]
            contexts[request.session] = np.concatenate([request.prompt_ids, out.ids, observed]).astype(np.int32)
    assert read == [15, 4, 8, 8], "once for all three, then for two together and one apart"


def test_a_released_session_gets_no_response(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    requests = [Request(s, ids, s) for s, ids in prompts(np.random.default_rng(4), 5, model.config.vocab_size).items()]
    engine.submit(requests, Sampling(max_tokens=6))
    engine.collect(0.0)
    engine.release(1)
    with rejects(ValueError, "under way"):
        engine.load_weights(named_tensors(model))
    sessions = []
    while finished := engine.collect():
        sessions += [request.session for request, _ in finished]
    assert sorted(sessions) == [0, 2, 3, 4]


def test_a_copy_in_another_precision_takes_new_weights_and_sleeps(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer, dtype="bfloat16")
    assert not engine.shares_weights and engine.model is not model
    ids = np.arange(300, 310, dtype=np.int32) % model.config.vocab_size
    first = engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))[0]
    engine.sleep()
    assert sum(p.untyped_storage().nbytes() for p in engine.model.parameters()) == 0
    with rejects(ValueError, "asleep"):
        engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))
    engine.wake()
    engine.load_weights(named_tensors(model))
    again = engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))[0]
    assert again.ids.tolist() == first.ids.tolist() and (again.logprobs == first.logprobs).all()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(-1)
    engine.load_weights(named_tensors(model))
    assert (engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))[0].logprobs != first.logprobs).all()


def test_weights_of_another_model_are_refused(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer)
    tensors = dict(named_tensors(model))
    name = next(iter(tensors))
    with rejects(ValueError, "1 parameters", repr(name)):
        engine.load_weights((n, t) for n, t in tensors.items() if n != name)
    with rejects(ValueError, "other", "(2,)"):
        engine.load_weights([("other", torch.zeros(2))])
    with rejects(ValueError, "(2,)", "in the engine"):
        engine.load_weights([(name, torch.zeros(2))])


def test_sums_in_float32_draw_the_same_tokens(monkeypatch):
    """GPUs sum in float32; tokens differ only if a draw falls between the two sums."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(64, 5000, generator=generator)
    uniform, item = np.random.default_rng(0).random(64), np.ones(64)
    double, _ = sample(logits, uniform, item)
    monkeypatch.setattr(torch.Tensor, "double", lambda self: self)
    single, _ = sample(logits, uniform, item)
    assert (double != single).mean() <= 2 / 64
