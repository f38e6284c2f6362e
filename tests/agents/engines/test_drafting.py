"""Drafts change how many forward passes a response takes, and nothing else."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines import transformers
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.drafting import MIN_PROBABILITY, LookupRates, PromptLookup
from gagpo.agents.engines.general import GeneralEngine, transformers_engine
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument
from gagpo.model.weights import named_tensors
from gagpo.settings import load, resolve
from tests.agents.engines.test_transformers import recomputed
from tests.rejections import rejects

ATOL = 1e-4  # of a log-probability: float32 sums whose order depends on the shape of a forward pass


def lookup_of(tokens):
    lookup = PromptLookup(LookupRates())
    lookup.read(tokens)
    return lookup


def test_a_draft_continues_the_latest_occurrence_of_the_longest_context():
    assert lookup_of([1, 2, 3, 4, 5, 1, 2, 3]).draft(3, []) == [4, 5, 1]
    assert lookup_of([1, 2, 3, 4, 9, 2, 3, 5, 9, 2, 3]).draft(1, []) == [5], "the later of two"
    assert lookup_of([7, 1, 2, 3, 0, 8, 1, 2, 4, 0, 7, 1, 2]).draft(1, []) == [3], "three tokens before two"
    assert lookup_of([1, 2, 3]).draft(4, []) == [], "3 is new"


def test_a_draft_ends_before_a_stop_token_and_at_its_limit():
    lookup = lookup_of([1, 2, 3, 4, 5, 6, 1, 2])
    assert lookup.draft(9, [4]) == [3]
    assert lookup.draft(2, []) == [3, 4]
    assert lookup.draft(0, []) == []


def test_token_ids_of_large_vocabularies_are_kept_apart():
    top = 2**20 - 1
    assert lookup_of([top, 0, 5, 0, top, 6, top, 0]).draft(1, []) == [5]


def test_contexts_that_mislead_are_not_drafted_from():
    lookup = PromptLookup(LookupRates())
    lookup.read([0])
    for number in range(40):  # what follows 1 is never what followed it last
        assert len(lookup.draft(1, [])) in (0, 1)
        for token in (1, 100 + number):
            lookup.sampled(token)
    lookup.sampled(1)
    assert lookup._rates.of(1) < MIN_PROBABILITY
    assert lookup.draft(6, []) == []


def test_a_prompt_that_changed_continues_after_what_stayed():
    lookup = lookup_of([1, 2, 3, 4])
    lookup.read([8, 9, 1, 2], before=[2, 3])
    assert lookup.draft(1, []) == [3], "of the part that is gone, still a guess"
    lookup.sampled(8)
    assert lookup.draft(1, []) == [9]


def conversations(engine, temperature, turns=4, sessions=6, max_tokens=14):
    """Conversations that repeat their own tokens; returns prompt and response of every turn."""
    rng = np.random.default_rng(3)
    words = [rng.integers(100, 140, 4).astype(np.int32) for _ in range(5)]
    contexts = {s: np.concatenate([words[i] for i in rng.integers(0, 5, 6)]) for s in range(sessions)}
    contexts[1] = contexts[0]  # read once
    history = []
    for turn in range(turns):
        requests = [
            Request(s, ids, 100 * turn + s, max_tokens=max_tokens - s, stop=("a",) if s == 2 else ())
            for s, ids in contexts.items()
        ]
        for request, response in zip(requests, engine.generate(requests, Sampling(temperature)), strict=True):
            history.append((request, response))
            parts = [request.prompt_ids, response.ids, words[rng.integers(0, 5)]]
            contexts[request.session] = np.concatenate(parts)[-60 if request.session == 3 else 0 :]
        if turn == 1:  # an episode ends, and the last slot moves
            engine.release(4)
            del contexts[4]
    return history


def require_same(history, other):
    for (request, plain), (_, drafted) in zip(history, other, strict=True):
        assert drafted.ids.tolist() == plain.ids.tolist(), request
        assert drafted.stopped == plain.stopped
        np.testing.assert_allclose(drafted.logprobs, plain.logprobs, atol=ATOL)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_tokens_are_those_without_drafts(tiny, temperature, monkeypatch):
    model, tokenizer = tiny
    passes, forward = [], TransformersEngine._forward
    monkeypatch.setattr(TransformersEngine, "_forward", lambda *inputs: (passes.append(1), forward(*inputs))[1])
    plain = conversations(TransformersEngine(model, tokenizer), temperature)
    plain_passes = len(passes)
    engine = TransformersEngine(model, tokenizer, draft_tokens=5)
    drafted = conversations(engine, temperature)
    require_same(plain, drafted)
    for request, response in drafted:
        if temperature:
            expected = recomputed(model, request.prompt_ids, response.ids, temperature)
            np.testing.assert_allclose(response.logprobs, expected, atol=2e-4)
    if not temperature:  # otherwise hardly anything repeats in a model of random weights
        assert len(passes) - plain_passes < plain_passes


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_no_draft_changes_a_response(tiny, fraction, monkeypatch):
    """Drafts from outside: a fraction of right tokens, drawn at random, and wrong ones."""
    model, tokenizer = tiny
    plain = conversations(TransformersEngine(model, tokenizer), 1.0)
    right = {(request.session, request.seed): response.ids for request, response in plain}
    rng = np.random.default_rng(0)
    kept = []

    def draft(engine, row):
        most = min(4, row.max_tokens - row.count - 1)
        ids = right[row.request.session, row.request.seed]
        ids = np.concatenate([ids, np.full(4, 101)])[row.count : row.count + most]
        row.draft = np.where(rng.random(len(ids)) < fraction, ids, rng.integers(100, 140, len(ids))).tolist()
        kept.append(row.draft[:1] == ids[:1].tolist())

    monkeypatch.setattr(TransformersEngine, "_draft", draft)
    require_same(plain, conversations(TransformersEngine(model, tokenizer, draft_tokens=4), 1.0))
    assert len(kept) > 0 and (np.mean(kept) > 0.4) == (fraction > 0)


def test_requests_that_join_others_are_drafted_for(tiny):
    model, tokenizer = tiny
    rng = np.random.default_rng(5)
    requests = [Request(s, np.tile(rng.integers(100, 110, 3), 4).astype(np.int32), s) for s in range(7)]
    alone = {
        request.session: TransformersEngine(model, tokenizer).generate([request], Sampling(0.3, 4 + request.session))[0]
        for request in requests
    }
    engine = TransformersEngine(model, tokenizer, draft_tokens=4)
    waiting, responses = list(requests), {}
    while len(responses) < len(requests):
        for request in (waiting.pop(0) for _ in range(min(2, len(waiting)))):
            engine.submit([request], Sampling(0.3, 4 + request.session))
        for request, response in engine.collect(0.0):
            responses[request.session] = response
            engine.release(request.session)
    for session, response in responses.items():
        assert response.ids.tolist() == alone[session].ids.tolist()
        np.testing.assert_allclose(response.logprobs, alone[session].logprobs, atol=ATOL)
    assert not engine._lookups, "a released session leaves nothing"


def test_new_weights_drop_what_was_counted(tiny):
    """Otherwise a resumed run would draft, and round, differently from one that was not killed."""
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer, draft_tokens=4)
    first = conversations(engine, 0.5, turns=2)
    assert engine._lookups and engine._rates.lookups != LookupRates().lookups
    engine.load_weights(named_tensors(model))
    assert not engine._lookups and engine._rates.lookups == LookupRates().lookups
    for (_, before), (_, after) in zip(first, conversations(engine, 0.5, turns=2), strict=True):
        assert (before.logprobs == after.logprobs).all(), "bit for bit"


def test_large_batches_are_not_drafted_for_until_few_responses_are_left(tiny, monkeypatch):
    model, tokenizer = tiny
    plain = conversations(TransformersEngine(model, tokenizer), 0.5)
    engine = TransformersEngine(model, tokenizer, draft_tokens=4)
    monkeypatch.setattr(transformers, "DRAFTED_ROWS", 3)
    asked, draft = [], PromptLookup.draft
    monkeypatch.setattr(PromptLookup, "draft", lambda *inputs: (asked.append(len(engine._rows)), draft(*inputs))[1])
    require_same(plain, conversations(engine, 0.5))
    assert max(asked) == 3


def test_recorded_steps_read_one_token(tiny, monkeypatch):
    """On a GPU nothing is drafted, and drafting may begin where recording fails."""
    model, tokenizer = tiny
    plain = conversations(TransformersEngine(model, tokenizer), 0.5)
    engine = TransformersEngine(model, tokenizer, draft_tokens=4)
    engine._recorded = True
    require_same(plain, conversations(engine, 0.5))
    assert not engine._lookups
    engine = TransformersEngine(model, tokenizer, draft_tokens=4)
    engine._recorded = True

    def waits(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(engine._steps, "_compute", waits)
    require_same(plain, conversations(engine, 0.5))
    assert engine._lookups


def test_the_option_is_for_models_with_flat_attention(tiny):
    model, tokenizer = tiny
    with rejects(InvalidArgument, "got -1", key="draft_tokens", where="engine transformers"):
        engine_options("transformers", {"draft_tokens": -1})
    options = engine_options("transformers", {"draft_tokens": 3})
    assert make_engine(options, model, tokenizer)._draft_tokens == 3
    assert make_engine("transformers", model, tokenizer)._draft_tokens == 0
    model.set_attn_implementation("sdpa")
    engine = transformers_engine(model, tokenizer, draft_tokens=3)
    ids = np.tile(np.arange(100, 104, dtype=np.int32), 4)
    with torch.inference_mode():
        response = engine.generate([Request(0, ids, 0)], Sampling(0.0, 6))[0]
    assert isinstance(engine, GeneralEngine) and len(response.ids)


@pytest.mark.parametrize(("draft_tokens", "correction"), [(0, "none"), (4, "recompute")])
def test_ratios_begin_at_the_trainers_log_probabilities_where_drafts_round(draft_tokens, correction):
    overrides = ["training.dtype=float32", "engine.dtype=float32", f"engine.options.draft_tokens={draft_tokens}"]
    assert resolve(load("alfworld-quickstart", overrides)).algorithm.correction.name == correction
