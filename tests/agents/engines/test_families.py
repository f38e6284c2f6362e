"""Each model family gives correct log-probabilities on the path that is chosen for it."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines.base import Request, Sampling, context_limit
from gagpo.agents.engines.general import GeneralEngine, transformers_engine
from gagpo.data import build_rows
from gagpo.learning.packing import Packing
from gagpo.model import attention_check
from gagpo.model.flat.attention import forward, is_flat
from gagpo.model.flat.packed import PackedRows
from gagpo.model.flat.slots import SlotCache
from gagpo.model.loading import ModelError, choose_path
from gagpo.model.logprobs import token_logprobs
from tests.agents.engines.families import FAMILIES, tiny
from tests.gagpo.learning.test_batch import conversation
from tests.rejections import rejects

BY_NAME = {family.name: family for family in FAMILIES}
LEAKING = ["Qwen3.5", "Qwen3-Next", "LFM2", "Bamba", "Falcon-H1", "Granite-MoE-Hybrid", "MiniMax", "Mamba 2"]
WINDOWED = ["Gemma 2", "Gemma 3", "gpt-oss", "Mistral with a window", "OLMo 3", "Qwen2 with a window"]


@pytest.mark.parametrize("name", [*LEAKING, "Llama 4", "Bloom", "Falcon with ALiBi"])
def test_models_whose_rows_would_leak_use_padded_rows(name):
    model = tiny(BY_NAME[name])
    assert choose_path(name, model) and not is_flat(model)
    expected = attention_check.eager_logprobs(model)
    lengths = [len(segment) for segment in expected]
    with torch.no_grad():
        layout = PackedRows(lengths)
        results = forward(model, torch.cat(attention_check.rows_of(model)), layout, torch.arange(sum(lengths)))
    for actual, reference in zip(results.log_softmax(-1).split(lengths), expected, strict=True):
        torch.testing.assert_close(actual, reference, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_caps_and_sinks_are_part_of_flat_attention(name):
    """Rows three times as long as the window: single rows in eager attention against rows read together."""
    model = tiny(BY_NAME[name])
    assert choose_path(name, model) == "" and is_flat(model)
    rng = np.random.default_rng(1)
    rows = [torch.as_tensor(rng.integers(3, 120, n)) for n in (19, 3, 25)]
    with torch.no_grad():
        layout = PackedRows([19, 3, 25])
        segments = forward(model, torch.cat(rows), layout, torch.arange(47)).split([19, 3, 25])
        model.set_attn_implementation("eager")
        for actual, row in zip(segments, rows, strict=True):
            torch.testing.assert_close(actual, model(row[None]).logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["Gemma 2", "gpt-oss", "Mistral with a window", "LFM2", "Mamba 2", "Bloom", "Llama 4"])
def test_sampled_logprobs_equal_those_of_the_trainer(name, recorded, tiny_tokenizer):
    """Sampled log-probabilities equal those of the trainer's pass, over responses longer than any window.

    recorded: with the padded steps of a GPU, on the flat path.
    """
    model = tiny(BY_NAME[name])
    choose_path(name, model)
    engine = transformers_engine(model, tiny_tokenizer)
    engine.stops, engine._recorded = np.array([7]), recorded and is_flat(model)
    assert isinstance(engine, GeneralEngine) != is_flat(model)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 120, n).astype(np.int32) for n in (4, 4, 9)]
    out = engine.generate([Request(i, ids, i) for i, ids in enumerate(prompts)], Sampling(max_tokens=14))
    episodes = [conversation((ids, response.ids)) for ids, response in zip(prompts, out, strict=True)]
    for micro_batche in Packing(100).micro_batches(build_rows(episodes)):
        with torch.no_grad():
            logprob, _ = token_logprobs(model, micro_batche)
        sampled = np.concatenate([response.logprobs for response in out])[micro_batche.token_K.numpy()]
        np.testing.assert_allclose(logprob.numpy(), sampled, atol=1e-3)


@pytest.fixture
def large_logits():
    """A Llama in bfloat16 whose rounding changes improbable tokens by more than half a nat, as in pretrained models."""
    model = tiny(BY_NAME["Llama 2, 3"]).bfloat16()
    model.model.norm.weight.data.mul_(40)
    return model


def test_large_logits_round_by_more_and_are_still_flat(large_logits):
    single = attention_check.eager_logprobs(large_logits)
    again = attention_check.eager_logprobs(large_logits.float())
    assert attention_check.worst(single, again) > 0.5
    assert choose_path("large logits", large_logits.bfloat16()) == "" and is_flat(large_logits)


def test_large_logits_do_not_hide_rows_that_leak(large_logits, monkeypatch):
    monkeypatch.setattr(attention_check, "PackedRows", lambda lengths, device: PackedRows([sum(lengths)], device))
    with rejects(ModelError, "nats off", "padded rows", where="model leaking (LlamaForCausalLM)"):
        choose_path("leaking", large_logits)


def test_large_logits_do_not_hide_a_wrong_cache(large_logits, monkeypatch):
    """Two rows that decode one token each exchange its keys."""
    attend = SlotCache.attend

    def exchanged(self, layer, query_THD, key_THD, value_THD, scale, kind):
        return attend(self, layer, query_THD, key_THD.roll(1, 0) if self._decode else key_THD, value_THD, scale, kind)

    monkeypatch.setattr(SlotCache, "attend", exchanged)
    assert "a cache: log-probabilities are" in attention_check.flat_error(large_logits)


@pytest.fixture
def tiny_tokenizer():
    class Tokenizer:
        eos_token_id = 2

        def get_added_vocab(self):
            return {}

    return Tokenizer()


def test_the_context_ends_where_positions_depend_on_the_length():
    assert context_limit(tiny(BY_NAME["Phi-3 long (longrope)"]).config) == 32
    assert context_limit(tiny(BY_NAME["Phi-3"]).config) == 64


def test_an_unsupported_argument_of_attention_is_named():
    model = tiny(BY_NAME["Qwen3"])
    attention = model.model.layers[0].self_attn
    inner = attention.forward
    attention.forward = lambda *args, **kwargs: inner(*args, **kwargs, novelty=1.0)
    assert "takes novelty, which is not known here" in attention_check.flat_error(model)
