"""The learned value: where it is read, what it is trained towards."""

import copy

import numpy as np
import pytest
import torch

from gagpo.agents.episodes import Episode, Turn
from gagpo.algorithms import load
from gagpo.credit import give_credit, turns_for
from gagpo.learning.batch import build_rows
from gagpo.learning.critic import Critic
from gagpo.learning.update import Updater

SETTINGS = {"token": load("ppo_token"), "turn": load("ppo_turn")}


def episodes(rng, count=6):
    made = []
    for number in range(count):
        row, turns = [], []
        for _ in range(3):
            prompt = np.asarray([*row, *rng.integers(5, 250, 3)], np.int32)
            said = rng.integers(5, 250, 2).astype(np.int32)
            turns.append(Turn("o", "r", "a", prompt_ids=prompt, response_ids=said, logprobs=np.full(2, -5, np.float32)))
            row = [*prompt, *said]
        turns[-1].reward = float(number % 2)
        made.append(Episode("t", group=number // 2, turns=turns, success=bool(number % 2), outcome="terminated"))
    return made


def test_the_head_starts_at_zero_and_values_do_not_depend_on_the_cut(tiny):
    model, _ = tiny
    rows = build_rows(episodes(np.random.default_rng(0)))
    critic = Critic(model, SETTINGS["token"].critic)
    assert (critic.of_rows(model, rows, 36, 1000) == 0).all()
    torch.nn.init.normal_(critic.head.weight)
    whole, cut = (critic.of_rows(model, rows, 36, budget) for budget in (1000, 1))
    np.testing.assert_allclose(whole, cut, atol=1e-4)
    assert len(np.unique(whole.round(4))) > 20


@pytest.mark.parametrize("level", SETTINGS)
def test_a_turns_value_is_read_before_its_response(level):
    made = episodes(np.random.default_rng(0))
    settings = SETTINGS[level].credit
    turns = turns_for(made, settings)
    value_K = np.arange(36.0)
    credit, targets = give_credit(turns, settings, value_K)
    assert len(targets.advantage) == len(targets.target) == 36
    if level == "turn":
        assert targets.first.tolist() == [True, False] * 18
        assert credit.target.shape == (18,)
    else:
        assert targets.first is None


@pytest.mark.parametrize("head", ["shared", "separate"])
@pytest.mark.parametrize("level", SETTINGS)
def test_training_brings_the_values_to_their_targets(tiny, level, head):
    model, _ = tiny
    algorithm = load(f"ppo_{level}", {"kl": {"coefficient": 0.0}, "critic": {"head": head, "clip": None}})
    critic = Critic(model, algorithm.critic)
    made = episodes(np.random.default_rng(1))
    rows, turns = build_rows(made), turns_for(made, algorithm.credit)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW([*model.parameters(), *critic.parameters()], lr=3e-3)
    updater = Updater(model, optimizer, algorithm, critic=critic, microbatch_tokens=40)
    _, targets = give_credit(turns, algorithm.credit, critic.of_rows(model, rows, 36, 1000))
    errors = [updater.update(rows, targets, np.random.default_rng(i))["value_error"] for i in range(25)]
    assert errors[-1] < 0.5 * errors[0]
    assert any(not torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    if head == "separate":
        assert critic.backbone is not None and critic.backbone is not model
