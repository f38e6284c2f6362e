"""Rotary factors of a GGUF file become the parameters that they were computed from."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gagpo.model.gguf.file import ConversionError, GgufFile
from gagpo.model.gguf.rope import FACTORS, rope_parameters
from tests.rejections import rejects


def published_factors(base, head_dim, factor, low, high, original):
    """As llama.cpp's converter computes them, frequency by frequency (convert_hf_to_gguf.py)."""
    factors = []
    for location in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (location / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.asarray(factors, np.float32)


def parameters_of(factors, base=500000.0, head_dim=128, monkeypatch=None):
    metadata = {"general.architecture": "llama", "llama.rope.freq_base": base}
    file = GgufFile([None], metadata, 0, {FACTORS: factors})
    monkeypatch.setattr(GgufFile, "numbers", lambda self, name: self.tensors[name])
    return rope_parameters(file, head_dim, 131072)


@pytest.mark.parametrize("model", [(128, 8.0, 1.0, 4.0), (64, 32.0, 1.0, 4.0)], ids=["Llama 3.1", "Llama 3.2"])
def test_published_parameters_are_recovered_exactly(monkeypatch, model):
    head_dim, factor, low, high = model
    factors = published_factors(500000.0, head_dim, factor, low, high, 8192)
    assert parameters_of(factors, head_dim=head_dim, monkeypatch=monkeypatch) == {
        "rope_theta": 500000.0,
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


STEPS = {
    "two levels": [1.0] * 8 + [8.0] * 8,
    "one between": [1.0] * 7 + [2.5] + [8.0] * 8,
    "one last": [1.0] * 15 + [3.0],
    "other parameters": published_factors(10000.0, 32, 4.0, 1.3, 5.2, 900),
    "two between": [*published_factors(10000.0, 32, 16.0, 1.0, 3.0, 512)],
    "all equal": [4.0] * 16,
    "none": [1.0] * 16,
}


@pytest.mark.parametrize("factors", STEPS.values(), ids=STEPS)
def test_transformers_computes_the_same_frequencies(monkeypatch, factors):
    result = parameters_of(np.asarray(factors, np.float32), 10000.0, 32, monkeypatch)
    config = AutoConfig.for_model("llama", hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=result)
    plain = 1 / 10000.0 ** (torch.arange(0, 32, 2) / 32)
    frequencies = plain
    if result["rope_type"] != "default":
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[result["rope_type"]](config, torch.device("cpu"))
        assert magnitude == 1.0
    torch.testing.assert_close(plain / frequencies, torch.tensor(np.float32(factors)), rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    "factors",
    [
        [8.0] * 8 + [1.0] * 8,
        [1.0] * 4 + [3.0] * 4 + [8.0] * 8,
        np.linspace(1, 8, 16),
        [1.0] * 8 + [0.5] * 8,
        [1.0] * 15 + [math.nan],
    ],
    ids=["falling", "three levels", "another curve", "below 1", "not a number"],
)
def test_other_factors_are_refused(monkeypatch, factors):
    with rejects(ConversionError, "rope_freqs.weight", "Llama"):
        parameters_of(np.asarray(factors, np.float32), 10000.0, 32, monkeypatch)
