"""Sums of credits, the warning about aliased keys, and examples in docstrings."""

import doctest
import importlib

import numpy as np
import pytest

from gagpo.algorithms import Algorithm, load
from gagpo.credit import Turns, advantages
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.weighted_sum import WeightedSum
from tests.rejections import rejects


@pytest.mark.parametrize(
    "module",
    ["statistics.aliasing", "statistics.dispersion", "statistics.similarity", "episode", "gagpo", "weighted_sum"],
)
def test_examples_in_docstrings_are_true(module):
    testmod = doctest.testmod(importlib.import_module(f"gagpo.credit.{module}"))
    assert testmod.attempted > 0 and testmod.failed == 0


def some_turns(seed: int = 0, episodes: int = 12, longest: int = 6) -> Turns:
    rng = np.random.default_rng(seed)
    length_E = rng.integers(1, longest + 1, episodes)
    count, success_E = int(length_E.sum()), rng.random(episodes) < 0.5
    reward_N = np.zeros(count)
    reward_N[np.cumsum(length_E) - 1] = 10.0 * success_E
    return Turns.of(
        reward_N,
        np.repeat(np.arange(episodes), length_E),
        np.arange(episodes) // 4,
        state_N=rng.integers(0, 6, count),
        success_E=success_E,
    )


def test_a_sum_adds_parts_divided_by_their_deviation():
    turns = some_turns()
    step, value = Graphgpo(episode_weight=0.0).advantage(turns), Gagpo(proxy="graph", lam=0.0).advantage(turns)
    assert WeightedSum().advantage(turns) == pytest.approx(step / step.std() + value / value.std())
    uneven = WeightedSum(weights=[0.5, -2.0]).advantage(turns)
    assert uneven == pytest.approx(0.5 * step / step.std() - 2 * value / value.std())
    assert WeightedSum(weights=[0.0, 1.0]).advantage(turns).std() == pytest.approx(1.0)
    assert WeightedSum(unit="none").advantage(turns) == pytest.approx(step + value)


def test_a_credit_without_deviation_adds_nothing():
    turns = some_turns()
    flat = Turns.of(
        np.zeros(turns.num_turns), turns.episode_N, turns.group_E, state_N=turns.state_N, success_E=[False] * 12
    )
    assert not WeightedSum(credits=["grpo", "graphgpo"]).advantage(flat).any()


def test_a_sums_key_is_that_of_its_credits_and_survives_a_round_trip():
    algorithm = load("graph_sum", {"credit": {"state_key": "observation"}})
    assert [credit.state_key for credit in algorithm.credit.credits] == ["observation", "observation"]
    assert Algorithm.model_validate(algorithm.model_dump(mode="json")) == algorithm
    similar = WeightedSum(credits=["grpo", {"name": "gigpo", "similarity": 0.9}])
    assert similar.reads_texts and not similar.follows_states and not WeightedSum().reads_texts


@pytest.mark.parametrize(
    ("changes", "key", "names"),
    [
        ({"credits": ["ppo_turn"]}, "algorithm.credit.credits", ("ppo_turn",)),
        ({"credits": ["reinforce_plus_plus"]}, "algorithm.credit.credits", ("reinforce_plus_plus",)),
        ({"credits": ["empg"]}, "algorithm.credit.credits", ()),
        (
            {"credits": [{"name": "gagpo", "state_key": "history"}]},
            "algorithm.credit.credits",
            ("state_key", "credit.state_key=history"),
        ),
        ({"weights": [1.0]}, "algorithm.credit.weights", ("2 credits", "1")),
        ({"credits": []}, "algorithm.credit.credits", ("1 item",)),
        ({"credits": ["gagpoo"]}, "credits.0", ("gagpo", "gagpoo")),
        ({"credits": [{"name": "gagpo", "lan": 1}]}, "credits.0.lan", ("lam",)),
    ],
)
def test_credits_that_cannot_be_summed_are_rejected(changes, key, names):
    with rejects(ValueError, *names, key=key):
        load("graph_sum", {"credit": changes})


def test_credits_that_follow_states_warn_of_aliased_keys():
    turns = Turns.of(
        [0] * 4 + [10],
        [0, 0, 1, 1, 1],
        [0, 0],
        state_N=[0, 1, 0, 2, 2],
        success_E=[False, True],
        action_N=[0, 0, 0, 0, 1],
    )
    for name in ("graphgpo", "milegpo", "graph_value", "graph_sum"):
        with pytest.warns(
            UserWarning, match=r"follows states, but its key does not identify them.*state_key=state, or, if"
        ):
            assert advantages(turns, load(name).credit).stats["aliasing"] == 1.0
    assert "aliasing" in advantages(turns, load("gagpo").credit).stats  # said, and no reason to warn: it averages
