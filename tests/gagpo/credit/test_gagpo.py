"""GAGPO's credit against the worked example of its formulas and the identities that hold for it."""

import pytest

from gagpo.credit import Turns, intern
from gagpo.credit.gagpo import Gagpo

STATES = ["s0", "a", "b", "s0", "a", "c", "s0", "d", "s0", "a", "b"]


@pytest.fixture
def example() -> Turns:
    """Four episodes of one task; the first and the last reach the goal and are paid 10."""
    return Turns.of(
        reward_N=[0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 10],
        episode_N=[0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3],
        group_E=[0, 0, 0, 0],
        state_N=intern(STATES),
    )


def test_value_proxy_is_the_mean_return_over_all_visits(example):
    value = dict(zip(STATES, Gagpo().value(example), strict=True))
    assert value == pytest.approx({"s0": 4.5125, "a": 19 / 3, "b": 10, "c": 0, "d": 0})


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (0.0, [1.5042, 3.1667, 0, 1.5042, -6.3333, 0, -4.5125, 0, 1.5042, 3.1667, 0]),
        (0.8, [3.9108, 3.1667, 0, -3.3092, -6.3333, 0, -4.5125, 0, 3.9108, 3.1667, 0]),
    ],
)
def test_worked_example(example, lam, expected):
    assert Gagpo(lam=lam, norm="none").advantage(example) == pytest.approx(expected, abs=5e-5)


def test_worked_example_is_normalised_by_its_sample_deviation(example):
    raw = Gagpo(norm="none").advantage(example)
    assert raw.mean() == pytest.approx(0, abs=5e-5)
    assert raw.std(ddof=1) == pytest.approx(3.4938, abs=5e-5)
    assert Gagpo().advantage(example) == pytest.approx((raw - raw.mean()) / (raw.std(ddof=1) + 1e-6))
