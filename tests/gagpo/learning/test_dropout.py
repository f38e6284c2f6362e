"""Dropout is off in training, so the ratios of an unchanged policy are 1."""

import numpy as np
import pytest
import torch

from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.activation_checkpointing import checkpoint_activations
from gagpo.model.flat.attention import head, hidden_states
from gagpo.model.flat.packed import PackedRows
from gagpo.model.loading import choose_path, untrained
from gagpo.model.networks import Networks
from tests.agents.engines.families import TINY

MORE = {"head_dim": None, "num_key_value_heads": None, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DROPPING = {
    "gpt2": {**MORE, "resid_pdrop": 0.3, "attn_pdrop": 0.3, "embd_pdrop": 0.3},
    "bloom": {
        **MORE,
        "hidden_dropout": 0.3,
        "attention_dropout": 0.3,
    },  # padded rows, and functions in place of modules
}


def made(kind):
    from transformers import AutoConfig

    torch.manual_seed(0)
    model = untrained(AutoConfig.for_model(kind, **{**TINY, **DROPPING[kind]})).eval()
    choose_path(kind, model)
    return model


def rows_of(model, count=4, length=20, response=8):
    rng = np.random.default_rng(0)
    rows, position_K = [], np.arange(length - response, length)
    for number in range(count):
        ids = rng.integers(5, 100, length).astype(np.int32)
        layout, keep = PackedRows([length - 1]), torch.as_tensor(position_K - 1)
        with torch.no_grad():  # what an engine would report of these tokens
            logits = head(model, hidden_states(model, torch.as_tensor(ids[:-1]).long(), layout, keep)).float()
        reference = logits.log_softmax(-1).gather(-1, torch.as_tensor(ids[position_K]).long()[:, None])[:, 0].numpy()
        numbers = number * response + np.arange(response)
        rows.append(Row(ids, position_K, np.full(response, number), numbers, reference, 1.0, number))
    return rows


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("kind", DROPPING)
def test_ratios_of_an_untouched_policy_are_one(kind, checkpointed):
    model = made(kind)
    if checkpointed:
        checkpoint_activations(model)
    rows, tokens = rows_of(model), 4 * 8
    updater = Updater(
        Networks(model),
        torch.optim.SGD(model.parameters(), lr=1e-12),
        load_algorithm("cispo"),
        UpdateSettings(minibatches=2),
    )
    learned = updater.update(rows, Credit(np.ones(4), np.full(4, 8)), np.random.default_rng(0))
    assert learned["updates"] == 2 and tokens == len(updater.ratio_K)
    np.testing.assert_allclose(updater.ratio_K, 1.0, atol=1e-5)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("kind", DROPPING)
def test_checkpointed_layers_are_computed_twice_and_give_the_same_gradients(kind):
    gradients, passes = [], []
    for checkpointed in (False, True):
        model = made(kind)
        if checkpointed:
            checkpoint_activations(model)
        layer = next(item for item in model.modules() if type(item).__name__.endswith(("Block", "DecoderLayer")))
        seen = []
        layer.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(module.training))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        Updater(Networks(model), optimizer, load_algorithm("cispo"), UpdateSettings(max_grad_norm=1e9)).update(
            rows_of(model), Credit(np.ones(4), np.full(4, 8)), np.random.default_rng(0)
        )
        gradients.append({name: before[name] - tensor.detach() for name, tensor in model.named_parameters()})
        passes.append(seen[4:])  # four rows were scored first
    assert len(passes[1]) == 2 * len(passes[0]) and not any(passes[0] + passes[1])
    for name, plain in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], plain, atol=1e-6, rtol=1e-4, msg=name)
