"""Recursions along episodes on batches larger than the blocks they are solved in."""

import numpy as np
import pytest

from gagpo.credit.statistics.returns import BLOCK, backward_recursion, generalised_advantage, return_to_go


@pytest.mark.parametrize("longest", [50, 3 * BLOCK])
def test_long_columns_match_a_loop(longest):
    rng = np.random.default_rng(longest)
    count = 2 * BLOCK + 17
    value, carry = rng.normal(size=count), rng.uniform(0.5, 1.0, count)
    carry[rng.random(count) < 1 / longest] = 0.0
    expected, after = np.zeros(count), 0.0
    for turn in reversed(range(count)):
        after = value[turn] + (carry[turn] * after if turn < count - 1 else 0.0)
        expected[turn] = after
    assert backward_recursion(value, carry) == pytest.approx(expected, abs=1e-9)


def test_undiscounted_returns_of_long_episodes_are_exact_sums():
    count = BLOCK + 5
    last = np.zeros(count, bool)
    last[[6, count - 1]] = True
    returns = return_to_go(np.ones(count), last, gamma=1.0)
    assert returns.tolist() == [*range(7, 0, -1), *range(count - 7, 0, -1)]


def test_advantages_decay_to_zero_without_denormal_numbers():
    delta = np.zeros(20_000)
    delta[-1] = 1.0
    last = np.zeros(20_000, bool)
    last[-1] = True
    advantage = generalised_advantage(delta, last, gamma=0.95, lam=0.8)
    assert advantage[-11] == pytest.approx(0.76**10)
    assert advantage[0] == pytest.approx(0.0, abs=1e-50)


def test_empty_columns():
    assert backward_recursion(np.zeros(0), np.zeros(0)).tolist() == []
