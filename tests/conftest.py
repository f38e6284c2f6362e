"""Shared by all tests: a model small enough for anything, without network, and no data outside the test's folder."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from gagpo.training.small_model import SmallModelSettings, build

TEXTS = ["You stand at 12. Go to door 3.", "left", "right", "On the table 1, you see a mug 1 and a knife 2."] * 3


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    torch.set_num_threads(1)


@pytest.fixture
def tiny():
    """A model with two layers and grouped heads, and its tokenizer."""
    settings = SmallModelSettings(layers=2, width=32, heads=4, key_value_heads=2, feed_forward=48, context=512)
    model, tokenizer = build(settings, TEXTS, seed=0)
    with torch.no_grad():  # larger weights make a peaked, varied distribution: errors show
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model.eval(), tokenizer
