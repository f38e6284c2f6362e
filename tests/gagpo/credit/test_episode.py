"""Episode-level credits: worked numbers, hand-computed cases and group statistics."""

import math

import numpy as np
import pytest

from gagpo.credit import Turns
from gagpo.credit.episode import AgpoAdaptive, AgpoAsymmetric, DrGrpo, Grpo, Rloo
from gagpo.credit.turns.dispersion import group_dispersion, group_quantile, group_skewness, vote_entropy

EVERY = [kind().advantage for kind in (Grpo, DrGrpo, Rloo, AgpoAdaptive)]


def single_turns(returns, groups=None, **more) -> Turns:
    """One turn per episode."""
    return Turns(returns, np.arange(len(returns)), [0] * len(returns) if groups is None else groups, **more)


def test_each_credit_by_hand():
    turns = single_turns([4.0, 0.0, 2.0, 2.0])
    std = math.sqrt(8 / 3)
    assert Grpo().advantage(turns) == pytest.approx(np.array([2, -2, 0, 0]) / (std + 1e-6))
    assert DrGrpo().advantage(turns).tolist() == [2, -2, 0, 0]
    assert Rloo().advantage(turns) == pytest.approx([4 - 4 / 3, -8 / 3, 0, 0])
    assert AgpoAdaptive().advantage(turns) == pytest.approx(np.array([2, -2, 0, 0]) / std)


def test_all_turns_of_an_episode_share_its_advantage_and_penalties_count():
    turns = Turns([0, 1, 0, 0], [0, 0, 1, 1], [3, 3], penalty_N=[0.5, 0, 0, 0])
    assert DrGrpo().advantage(turns).tolist() == [0.25, 0.25, -0.25, -0.25]


@pytest.mark.parametrize("credit", EVERY)
def test_groups_of_one_and_equal_returns_give_exactly_nothing(credit):
    turns = single_turns([0.1, 0.1, 0.1, 7.0], groups=[0, 0, 0, 1])
    assert np.array_equal(credit(turns), np.zeros(4))


@pytest.mark.parametrize("credit", EVERY)
def test_groups_do_not_see_each_other(credit):
    one, other = single_turns([1.0, 0.0, 0.0]), single_turns([5.0, 1.0, 0.0])
    both = single_turns([1.0, 5.0, 0.0, 1.0, 0.0, 0.0], groups=[9, 2, 9, 2, 9, 2])
    assert credit(both)[[0, 2, 4]] == pytest.approx(credit(one))
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


def test_dispersions_by_hand():
    returns, group = np.array([1.0, 2.0, 4.0, 8.0, 5.0, 5.0]), np.array([0, 0, 0, 0, 1, 1])
    assert group_dispersion(returns, group, 2, "std") == pytest.approx([np.std([1, 2, 4, 8], ddof=1), 0])
    # Median 3, deviations 2 1 1 5, their median 1.5; quartiles 1.75 and 5.
    assert group_dispersion(returns, group, 2, "mad") == pytest.approx([1.4826 * 1.5, 0])
    assert group_dispersion(returns, group, 2, "iqr") == pytest.approx([3.25 / 1.349, 0])
    with pytest.raises(ValueError, match="unknown dispersion"):
        group_dispersion(returns, group, 2, "range")


@pytest.mark.parametrize("dispersion", ["std", "mad", "iqr"])
def test_adaptive_agpo_divides_by_the_chosen_dispersion(dispersion):
    returns = np.array([1.0, 2.0, 4.0, 8.0])
    spread = group_dispersion(returns, np.zeros(4, int), 1, dispersion)[0]
    assert AgpoAdaptive(dispersion=dispersion).advantage(single_turns(returns)) == pytest.approx(
        (returns - 3.75) / spread
    )


@pytest.mark.parametrize("dispersion", ["mad", "iqr"])
def test_a_robust_dispersion_of_zero_falls_back_to_the_deviation(dispersion):
    turns = single_turns([1.0] + [0.0] * 7)
    assert AgpoAdaptive(dispersion=dispersion).advantage(turns) == pytest.approx(
        AgpoAdaptive(dispersion="std").advantage(turns)
    )


def test_quantiles_are_those_of_numpy():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 7, 200)
    value = rng.normal(size=200)
    for share in (0.0, 0.25, 0.5, 0.9, 1.0):
        expected = [np.quantile(value[group == g], share) for g in range(7)]
        assert group_quantile(value, group, 7, share) == pytest.approx(expected)


def test_skewness_by_hand():
    # 0 0 0 1: m2 = 3/16, m3 = 3/32, g1 = 1.1547; corrected by sqrt(12)/2.
    value, group = np.array([0, 0, 0, 1.0, 2, 2, 2, 0, 9.0]), np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    assert group_skewness(value, group, 3) == pytest.approx([2.0, 0.0, 0.0])
    many = np.array([0.0] * 199 + [1.0])
    assert group_skewness(many, np.zeros(200, int), 1).tolist() == [10.0]


def test_vote_entropy_by_hand():
    outcome, group = np.array([7, 7, 7, 9, 1, 1, 2, 3]), np.array([0, 0, 0, 0, 1, 1, 2, 2])
    expected = [-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), 0.0, math.log(2)]
    assert vote_entropy(outcome, group, 3) == pytest.approx(expected)
