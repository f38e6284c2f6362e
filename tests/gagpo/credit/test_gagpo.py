"""GAGPO's credit against the worked example of its formulas and the identities that hold for it."""

import pytest
from pydantic import ValidationError

from gagpo.credit import Turns, intern
from gagpo.credit.episode import DrGrpo
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


def test_a_turn_in_a_state_visited_once_shares_the_credit_of_the_action_before(example):
    """``d`` and ``c`` are visited once: what the episode did there has no other advantage than how it got there."""
    plain, macro = (Gagpo(lam=0.0, norm="none", macro_actions=on).advantage(example) for on in (False, True))
    assert macro[[0, 1, 2, 3, 4, 6, 8, 9, 10]] == pytest.approx(plain[[0, 1, 2, 3, 4, 6, 8, 9, 10]])
    assert plain[[5, 7]].tolist() == [0, 0] and macro[[5, 7]].tolist() == plain[[4, 6]].tolist()


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("proxy", "gamma"), [("return", 1.0), ("outcome", 1.0), ("graph", 1 - 1e-9)])
def test_without_repeated_states_macro_actions_are_whole_episodes_with_grpos_credit(lam, proxy, gamma):
    turns = Turns.of([0, 0, 1, 0, 0, 0, 2], [0, 0, 0, 1, 1, 2, 2], [0, 0, 0], state_N=[0, 1, 2, 0, 3, 0, 4])
    credit = Gagpo(lam=lam, proxy=proxy, gamma=gamma, norm="none", macro_actions=True)
    assert credit.advantage(turns) == pytest.approx(DrGrpo().advantage(turns), abs=1e-6)


def test_macro_actions_are_not_normalised_by_state():
    """A turn in a state visited once is alone in its state: normalised there, its advantage would be 0 again."""
    with pytest.raises(ValidationError, match="norm=state has no use for macro_actions"):
        Gagpo(norm="state", macro_actions=True)
