"""The learned value: where it is read and what it is trained on."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from gagpo.algorithms import load
from gagpo.credit import advantages, turns_for
from gagpo.data import Episode, Turn, build_rows
from gagpo.learning.loss import with_columns
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.networks import Critic, Networks

SETTINGS = {"token": load("ppo"), "turn": load("ppo_turn")}


def episodes(rng, count=6):
    result = []
    for number in range(count):
        row, turns = [], []
        for _ in range(3):
            prompt = np.asarray([*row, *rng.integers(5, 250, 3)], np.int32)
            astype = rng.integers(5, 250, 2).astype(np.int32)
            turns.append(
                Turn("o", "r", "a", prompt_ids=prompt, response_ids=astype, logprobs=np.full(2, -5, np.float32))
            )
            row = [*prompt, *astype]
        turns[-1] = replace(turns[-1], reward=float(number % 2))
        result.append(Episode("t", group=number // 2, turns=turns, success=bool(number % 2), outcome="terminated"))
    return result


def test_the_head_starts_at_zero_and_values_do_not_depend_on_the_cut(tiny):
    model, _ = tiny
    rows = build_rows(episodes(np.random.default_rng(0)))
    critic = Critic(model)
    optimizer = torch.optim.AdamW(critic.parameters())
    result = [
        Updater(Networks(model, critic), optimizer, SETTINGS["token"], UpdateSettings(packing=Packing(budget)))
        for budget in (1000, 1)
    ]
    assert (result[0].values(rows, 36) == 0).all()
    torch.nn.init.normal_(critic.head.weight)
    full, cut = (updater.values(rows, 36) for updater in result)
    np.testing.assert_allclose(full, cut, atol=1e-4)
    assert len(np.unique(full.round(4))) > 20


@pytest.mark.parametrize("level", SETTINGS)
def test_a_turns_value_is_read_before_its_response(level):
    result = episodes(np.random.default_rng(0))
    settings = SETTINGS[level].credit
    turns = turns_for(result, settings)
    value_K = np.arange(36.0)
    credit = advantages(turns, settings, value_K)
    assert len(credit.per_token()) == len(credit.value_K) == 36
    batches = [with_columns(batch, credit, None) for batch in Packing(40).micro_batches(build_rows(result))]
    return_K, old_value_K = (np.zeros(36, np.float32) for _ in range(2))
    for batch in batches:
        assert batch.first_K is None or (batch.token_K[batch.first_K] % 2 == 0).all()
        return_K[batch.token_K], old_value_K[batch.token_K] = batch.return_K, batch.old_value_K
    assert old_value_K.tolist() == value_K.tolist()
    if level == "turn":  # of two tokens each: credit is computed from the values of the first ones, 0, 2, 4, ...
        assert credit.target.shape == (18,)
        expected = advantages(turns, settings, np.repeat(value_K[::2], 2))
        assert return_K.tolist() == np.repeat(expected.target, 2).astype(np.float32).tolist()
        assert sum(len(batch.first_K) for batch in batches) == 18
    else:
        assert all(batch.first_K is None for batch in batches)
        assert return_K.tolist() == credit.target.astype(np.float32).tolist()


@pytest.mark.parametrize("level", SETTINGS)
def test_training_brings_the_values_to_their_targets(tiny, level):
    model, _ = tiny
    algorithm = load(SETTINGS[level].preset, {"kl": {"coefficient": 0.0}, "critic": {"clip": None}})
    critic = Critic(model)
    result = episodes(np.random.default_rng(1))
    rows, turns = build_rows(result), turns_for(result, algorithm.credit)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW([*model.parameters(), *critic.parameters()], lr=3e-3)
    updater = Updater(Networks(model, critic), optimizer, algorithm, UpdateSettings(packing=Packing(40)))
    credit = advantages(turns, algorithm.credit, updater.values(rows, 36))
    errors = [updater.update(rows, credit, np.random.default_rng(i))["value_error"] for i in range(25)]
    assert errors[-1] < 0.5 * errors[0]
    assert any(not torch.equal(value, model.state_dict()[name]) for name, value in before.items())
