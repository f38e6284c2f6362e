"""Sums of credits, and values fitted without the own episode."""

import doctest
import importlib

import numpy as np
import pytest

from gagpo.algorithms import load
from gagpo.credit import Turns, advantages
from gagpo.credit.empirical_bayes import (
    EmpiricalBayes,
    ridge_without_own_episode,
    shrunk_without_own,
    variance_ratio,
)
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.graphgpo import Graphgpo
from gagpo.credit.weighted_sum import WeightedSum


@pytest.mark.parametrize("module", ["turns.aliasing", "turns.keys", "gagpo"])
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(importlib.import_module(f"gagpo.credit.{module}"))
    assert found.attempted > 0 and found.failed == 0


def some_turns(seed: int = 0, episodes: int = 12, longest: int = 6, width: int = 5) -> Turns:
    rng = np.random.default_rng(seed)
    length_E = rng.integers(1, longest + 1, episodes)
    count, success_E = int(length_E.sum()), rng.random(episodes) < 0.5
    reward_N = np.zeros(count)
    reward_N[np.cumsum(length_E) - 1] = 10.0 * success_E
    return Turns(
        reward_N,
        np.repeat(np.arange(episodes), length_E),
        np.arange(episodes) // 4,
        state_N=rng.integers(0, 6, count),
        success_E=success_E,
        feature_NF=rng.normal(size=(count, width)),
    )


def test_a_sum_adds_parts_divided_by_their_deviation():
    turns = some_turns()
    step, value = Graphgpo(episode_weight=0.0).advantage(turns), Gagpo(proxy="graph", lam=0.0).advantage(turns)
    assert WeightedSum().advantage(turns) == pytest.approx(step / step.std() + value / value.std())


def test_leave_one_out_fit_matches_a_separate_fit():
    turns = some_turns(3)
    target_N = np.random.default_rng(1).normal(size=turns.turns)
    found = ridge_without_own_episode(turns.feature_NF, target_N, turns.episode_N, ridge=2.0)
    for episode in range(turns.episodes):
        own = turns.episode_N == episode
        x, y = turns.feature_NF[~own], target_N[~own]
        weights = np.linalg.solve(x.T @ x + np.diag([0.0, 2, 2, 2, 2]), x.T @ y)
        assert found[own] == pytest.approx(turns.feature_NF[own] @ weights, abs=1e-9)


def test_shrinkage_by_hand():
    group, owner = np.repeat([0, 1, 2], 4), np.arange(12)
    clear = np.repeat([-10.0, 0.0, 10.0], 4) + np.tile([-1.0, 1.0, -1.0, 1.0], 3)
    ratio = variance_ratio(clear, group, 3)
    assert ratio == pytest.approx((4 / 3) / (100 - 1 / 3))
    found = shrunk_without_own(clear, group, owner)
    assert found[0] == pytest.approx((1.0 - 1.0 + 1.0 - 30.0) / (3 + ratio))
    alike = np.tile([-1.0, 1.0, -1.0, 1.0], 3)
    assert variance_ratio(alike, group, 3) == np.inf and not shrunk_without_own(alike, group, owner).any()
    assert not shrunk_without_own(clear, group, group).any()  # groups of one owner


@pytest.mark.parametrize(
    ("returns", "value"), [([10, 10, 0, 0], [10, 10, 0, 0]), ([10, 0, 0, 0], [0, 10 / 3, 10 / 3, 10 / 3])]
)
def test_worked_example_of_a_value_by_task(returns, value):
    turns = Turns(returns, range(4), [0, 0, 1, 1], state_N=range(4))
    assert EmpiricalBayes().value(turns) == pytest.approx(value, abs=5e-5)


def test_credits_that_follow_states_warn_of_aliased_keys():
    turns = Turns(
        [0] * 4 + [10],
        [0, 0, 1, 1, 1],
        [0, 0],
        state_N=[0, 1, 0, 2, 2],
        success_E=[False, True],
        action_N=[0, 0, 0, 0, 1],
    )
    for name in ("graphgpo", "milegpo", "graph_value", "graph_sum"):
        with pytest.warns(UserWarning, match=r"follows states, but its key does not identify them.*key=state, or, if"):
            assert advantages(turns, load(name).credit).stats["aliasing"] == 1.0
    assert "aliasing" in advantages(turns, load("gagpo").credit).stats  # said, and no reason to warn: it averages
