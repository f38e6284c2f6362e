"""Episode-level credits: worked numbers, hand-computed cases and group statistics."""

import math

import numpy as np
import pytest

from gagpo.credit import Turns
from gagpo.credit.episode import AgpoAdaptive, AgpoAsymmetric, DrGrpo, Grpo, Rloo

EVERY = [kind().advantage for kind in (Grpo, DrGrpo, Rloo, AgpoAdaptive)]


def single_turns(returns, groups=None, **more) -> Turns:
    """One turn per episode."""
    return Turns.of(returns, np.arange(len(returns)), [0] * len(returns) if groups is None else groups, **more)


def test_each_credit_by_hand():
    turns = single_turns([4.0, 0.0, 2.0, 2.0])
    std = math.sqrt(8 / 3)
    assert Grpo().advantage(turns) == pytest.approx(np.array([2, -2, 0, 0]) / (std + 1e-6))
    assert DrGrpo().advantage(turns).tolist() == [2, -2, 0, 0]
    assert Rloo().advantage(turns) == pytest.approx([4 - 4 / 3, -8 / 3, 0, 0])
    assert AgpoAdaptive().advantage(turns) == pytest.approx(np.array([2, -2, 0, 0]) / std)


def test_all_turns_of_an_episode_share_its_advantage_and_penalties_count():
    turns = Turns.of([0, 1, 0, 0], [0, 0, 1, 1], [3, 3], penalty_N=[0.5, 0, 0, 0])
    assert DrGrpo().advantage(turns).tolist() == [0.25, 0.25, -0.25, -0.25]


@pytest.mark.parametrize("credit", EVERY)
def test_groups_of_one_and_equal_returns_give_exactly_nothing(credit):
    turns = single_turns([0.1, 0.1, 0.1, 7.0], groups=[0, 0, 0, 1])
    assert np.array_equal(credit(turns), np.zeros(4))


@pytest.mark.parametrize("credit", EVERY)
def test_groups_do_not_see_each_other(credit):
    item, other = single_turns([1.0, 0.0, 0.0]), single_turns([5.0, 1.0, 0.0])
    both = single_turns([1.0, 5.0, 0.0, 1.0, 0.0, 0.0], groups=[9, 2, 9, 2, 9, 2])
    assert credit(both)[[0, 2, 4]] == pytest.approx(credit(item))
    assert credit(both)[[1, 3, 5]] == pytest.approx(credit(other))


@pytest.mark.parametrize(
    ("right", "positive", "negative"), [(1, 1.4596, -1.2085), (4, 0.7071, -1.7071), (7, 0.2085, -2.4596)]
)
def test_asymmetric_agpo_has_its_worked_numbers(right, positive, negative):
    turns = single_turns([0.0] * 8, success_E=[True] * right + [False] * (8 - right))
    advantage = AgpoAsymmetric().advantage(turns)
    assert advantage[:right] == pytest.approx([positive] * right, abs=5e-5)
    assert advantage[right:] == pytest.approx([negative] * (8 - right), abs=5e-5)


def test_asymmetric_agpo_options_by_hand():
    turns = single_turns([0.0, 0.0], success_E=[True, False])
    advantage = AgpoAsymmetric(delta=2.0, bonus=-0.25).advantage(turns)
    assert advantage == pytest.approx([1 / math.sqrt(5), -1 / math.sqrt(5) - 0.25])


def test_asymmetric_agpo_of_uniform_groups():
    turns = single_turns([10, 10, 0, 0], groups=[0, 0, 1, 1], success_E=[True, True, False, False])
    assert AgpoAsymmetric().advantage(turns).tolist() == [0, 0, -1, -1]
