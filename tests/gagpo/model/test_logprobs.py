"""Log-probabilities and gradients do not depend on chunks."""

import numpy as np
import pytest
import torch

from benchmarks import memory
from gagpo.data import build_rows
from gagpo.learning.packing import Packing
from gagpo.model import logprobs
from gagpo.model.logprobs import token_logprobs
from tests.gagpo.learning.test_batch import conversation


def passed(model, batch, entropy):
    model.zero_grad(set_to_none=True)
    logprob, reference = token_logprobs(model, batch, entropy)
    (logprob.sum() + (0 if reference is None or not reference.requires_grad else 0.3 * reference.sum())).backward()
    return logprob.detach(), reference, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_change_nothing(tiny, monkeypatch, entropy, temperature):
    model, _ = tiny
    rng = np.random.default_rng(0)
    episodes = [conversation((rng.integers(0, 300, 5), rng.integers(0, 300, n))) for n in (3, 7, 11)]
    for episode in episodes:
        episode.temperature = temperature
    (batch,) = Packing(1000).micro_batches(build_rows(episodes))
    full = passed(model, batch, entropy)
    sizes = []
    inner = logprobs._of_chunk
    monkeypatch.setattr(logprobs, "_of_chunk", lambda m, h, *rest: (sizes.append(len(h)), inner(m, h, *rest))[1])
    monkeypatch.setattr(logprobs, "CHUNK", 4 * model.config.vocab_size)
    cut = passed(model, batch, entropy)
    assert max(sizes) == 4 and len(sizes) == 2 * 6  # forward, and again for the gradients
    torch.testing.assert_close(cut[0], full[0], atol=1e-5, rtol=1e-5)
    if entropy != "none":
        torch.testing.assert_close(cut[1], full[1], atol=1e-5, rtol=1e-5)
        assert cut[1].requires_grad == (entropy == "gradient")
    for name, gradient in full[2].items():
        torch.testing.assert_close(cut[2][name], gradient, atol=1e-4, rtol=1e-4, msg=name)


def test_chunks_are_larger_on_a_gpu():
    assert logprobs.chunk_tokens(152_000, "cpu") == 220 and logprobs.chunk_tokens(152_000, "cuda") == 883
    assert logprobs.chunk_tokens(10**9, "cuda") == 1


WORDS = 16_000


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark, whose plain way is the reference, with chunks of 8 tokens of a wide vocabulary."""
    monkeypatch.setattr(logprobs, "CHUNK", 8 * WORDS)
    return memory


def test_values_and_gradients_match_the_plain_computation(benchmark):
    assert benchmark.difference(128, WORDS) <= benchmark.TOLERANCE


@pytest.mark.slow
def test_memory_does_not_grow_with_tokens_times_vocabulary(benchmark):
    few, many = (benchmark.peak(benchmark.token_logprobs, tokens, WORDS) for tokens in (128, 512))
    plain_few, plain_many = (benchmark.peak(benchmark.plain_logprobs, tokens, WORDS) for tokens in (128, 512))
    logits = 4 * (512 - 128) * WORDS
    assert plain_many - plain_few > 3 * logits  # several of that size at a time
    assert many - few < 0.5 * logits
