"""Identities and invariances of credits, on random batches."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.algorithms import PRESETS, load
from gagpo.credit import Turns, advantages
from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.gigpo import Gigpo
from gagpo.credit.hgpo import Hgpo

GAMMA = 0.95


@st.composite
def batches(draw, longest: int = 6, states: int = 4) -> Turns:
    """Up to seven short episodes of up to three tasks, in mixed order, with few states and round rewards."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=7))
    count, episodes = sum(lengths), len(lengths)

    def column(values, size):
        return draw(st.lists(values, min_size=size, max_size=size))

    return Turns.of(
        reward_N=column(st.sampled_from([0.0, 0.0, 1.0, -0.5, 10.0]), count),
        episode_N=np.repeat(np.arange(episodes), lengths),
        group_E=column(st.integers(0, 2), episodes),
        state_N=column(st.integers(0, states - 1), count),
        penalty_N=column(st.sampled_from([0.0, 0.0, 0.1]), count),
        tokens_N=column(st.integers(1, 4), count),
        truncated_E=column(st.booleans(), episodes),
        success_E=column(st.booleans(), episodes),
        end_state_E=column(st.integers(0, states), episodes),
    )


def paths(turns: Turns) -> list[list[int]]:
    return [np.flatnonzero(turns.episode_N == episode).tolist() for episode in range(turns.num_episodes)]


def discounted(turns: Turns, gamma: float) -> np.ndarray:
    reward, result = turns.reward_N - turns.penalty_N, np.zeros(turns.num_turns)
    for path in paths(turns):
        for location, turn in enumerate(path):
            result[turn] = sum(gamma**k * reward[later] for k, later in enumerate(path[location:]))
    return result


@settings(deadline=None, max_examples=30)
@given(turns=batches())
def test_gagpo_identities(turns):
    returns, value = discounted(turns, GAMMA), Gagpo(gamma=GAMMA).value(turns)
    monte_carlo = Gagpo(gamma=GAMMA, lam=1.0, norm="none").advantage(turns)
    assert monte_carlo == pytest.approx(returns - value, abs=1e-9)
    unpunished = Turns.of(turns.reward_N, turns.episode_N, turns.group_E, state_N=turns.state_N)
    assert Gagpo(gamma=GAMMA, lam=1.0, norm="none").advantage(unpunished) == pytest.approx(
        Gigpo(gamma=GAMMA, norm="mean").step_advantage(unpunished), abs=1e-9
    )
    state, shared = turns.states(), np.bincount(turns.states())
    for item in range(len(shared)):
        assert monte_carlo[state == item].sum() == pytest.approx(0.0, abs=1e-9)
    assert monte_carlo[shared[state] == 1] == pytest.approx(0.0, abs=1e-9)
    for path in paths(turns):
        # Nothing shared from here on: no credit, whatever lambda is.
        alone = [all(shared[state[later]] == 1 for later in path[location:]) for location in range(len(path))]
        credit = Gagpo(gamma=GAMMA, lam=0.5, norm="none").advantage(turns)
        assert all(credit[turn] == 0.0 for turn, free in zip(path, alone, strict=True) if free)


@settings(deadline=None, max_examples=30)
@given(turns=batches(longest=1, states=1))
def test_gagpo_on_single_turns_is_grpo(turns):
    assert Gagpo().advantage(turns) == pytest.approx(Grpo().advantage(turns), abs=1e-9)


# What must not change a credit -------------------------------------------------------------------------------------


ONE_PER_CREDIT = list({repr(load(name).credit): name for name in reversed(PRESETS)}.values())
"""A preset of each credit with its options."""


def critic_values(turns: Turns) -> np.ndarray:
    """Values that depend on the state alone, so that they move along when turns are reordered."""
    return np.repeat(0.3 * (turns.state_N % 3), turns.tokens_N)


def credit_of(turns: Turns, name: str) -> np.ndarray:
    measured = {"entropy_N": turns.tokens_N / 10, "energy_K": np.repeat(1 / (1 + turns.tokens_N), turns.tokens_N)}
    turns = turns.with_columns(**measured)  # of the turn alone, so that they move along too
    return advantages(turns, load(name).credit, critic_values(turns)).advantage_N


def pick(turns: Turns, episodes: list[int], rename=lambda ids: ids, regroup=lambda ids: ids) -> Turns:
    """The chosen episodes in the given order, with other ids for states and groups."""
    order = [turn for episode in episodes for turn in paths(turns)[episode]]
    lengths = [len(paths(turns)[episode]) for episode in episodes]
    return Turns.of(
        turns.reward_N[order],
        np.repeat(np.arange(len(episodes)), lengths),
        regroup(turns.group_E[episodes]),
        state_N=rename(turns.state_N[order]),
        penalty_N=turns.penalty_N[order],
        tokens_N=turns.tokens_N[order],
        truncated_E=turns.truncated_E[episodes],
        success_E=turns.success_E[episodes],
        end_state_E=rename(turns.end_state_E[episodes]),
    )


@pytest.mark.parametrize("name", ONE_PER_CREDIT)
@settings(deadline=None, max_examples=8)
@given(turns=batches(), data=st.data())
def test_order_of_episodes_and_names_of_states_and_groups_do_not_matter(name, turns, data):
    order = data.draw(st.permutations(range(turns.num_episodes)))
    changed = pick(turns, order, rename=lambda ids: 10**15 - 7 * ids, regroup=lambda ids: 100 - ids)
    # The critic of this test reads state ids modulo 3, which renaming would change.
    changed = pick(turns, order, regroup=lambda ids: 100 - ids) if load(name).critic else changed
    moved = [turn for episode in order for turn in paths(turns)[episode]]
    assert credit_of(changed, name) == pytest.approx(credit_of(turns, name)[moved], abs=1e-6)


WITHIN_GROUPS = [
    name
    for name in ONE_PER_CREDIT
    if not load(name).credit.name.startswith(("reinforce", "ppo", "weighted_sum", "empg"))
]


@pytest.mark.parametrize("name", WITHIN_GROUPS)
@settings(deadline=None, max_examples=8)
@given(turns=batches())
def test_adding_a_group_changes_no_other(name, turns):
    actual = [episode for episode in range(turns.num_episodes) if turns.group_E[episode] == turns.group_E[0]]
    retained = [turn for episode in actual for turn in paths(turns)[episode]]
    assert credit_of(pick(turns, actual), name) == pytest.approx(credit_of(turns, name)[retained], abs=1e-6)


@pytest.mark.parametrize("name", [name for name in ONE_PER_CREDIT if name != "rejection_sampling"])
@settings(deadline=None, max_examples=8)
@given(turns=batches())
def test_equal_rewards_give_no_advantage(name, turns):
    """All episodes alike: one turn each, the same reward. Asymmetric AGPO alone tells all-wrong from all-right.

    Successes are imitated by rejection sampling, whatever the others did.
    """
    alike = Turns.of(
        np.full(turns.num_episodes, 0.7),
        np.arange(turns.num_episodes),
        turns.group_E,
        state_N=np.zeros(turns.num_episodes, int),
        success_E=np.ones(turns.num_episodes, bool),
        entropy_N=turns.tokens_N[: turns.num_episodes] / 10,
        energy_K=np.linspace(0.1, 0.9, turns.num_episodes),
    )
    credit = advantages(alike, load(name).credit, critic_values(alike))
    assert np.array_equal(credit.advantage_N, np.zeros(turns.num_episodes))
    assert credit.stats["zero_advantage_groups"] == 1.0
    assert credit.stats["equal_return_groups"] == 1.0


@pytest.mark.parametrize("returns", [(1.0, 2.0, 3.0), (0.1, 0.2, 0.3), (-0.1, 0.0, 0.1)])
def test_depths_that_hgpo_drops_do_not_depend_on_rounding(returns):
    """The middle episode is the mean at depth 0, so that only depth 1 counts there, with the first episode."""
    low, middle, high = returns
    rewards = [0, low, 0, middle, 0, high]
    turns = Turns.of(rewards, [0, 0, 1, 1, 2, 2], [0, 0, 0], state_N=[5, 1, 5, 1, 6, 1])
    hgpo = Hgpo(gamma=1.0, depth=1, norm="mean", drop_zero=True)
    assert hgpo.advantage(turns)[3] == pytest.approx((middle - low) / 2)


def test_statistics_by_hand():
    turns = Turns.of([0, 10, 0, 0, 0], [0, 0, 1, 2, 3], [0, 0, 1, 1], state_N=[0, 1, 0, 5, 6])
    credit = advantages(turns, Gagpo(norm="none"))
    # V(0) = (9.5 + 0)/2, V(1) = 10: turns 0 and 2 gain and lose 4.75.
    assert credit.advantage_N == pytest.approx([4.75, 0, -4.75, 0, 0])
    assert credit.stats == pytest.approx(
        {
            "zero_advantage_groups": 0.5,
            "equal_return_groups": 0.5,
            "repeated_states": 0.4,
            "visits_1": 0.6,
            "visits_2_3": 0.4,
            "visits_4_7": 0.0,
            "visits_8_up": 0.0,
            "advantage_abs": 1.9,
            "advantage_std": math.sqrt(2 * 4.75**2 / 5),
        }
    )


def test_a_credit_without_states_has_no_statistics_of_states():
    """Health would warn of states that GRPO does not use."""
    turns = Turns.of([0, 10, 0, 0, 0], [0, 0, 1, 2, 3], [0, 0, 1, 1], state_N=[0, 1, 0, 5, 6])
    stats = advantages(turns, load("grpo").credit).stats
    assert set(stats) == {"zero_advantage_groups", "equal_return_groups", "advantage_abs", "advantage_std"}


def test_turn_credit_is_repeated_over_tokens_and_token_credit_averaged_over_turns():
    turns = Turns.of([0, 1, 0], [0, 0, 1], [0, 0], tokens_N=[2, 1, 3])
    credit = advantages(turns, load("dr_grpo").credit)
    assert credit.per_token().tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5]
    by_token = advantages(turns, load("reinforce_plus_plus", {"credit": {"gamma": 0.5}}).credit)
    assert len(by_token.per_token()) == 6
    assert by_token.advantage_N[0] == pytest.approx(by_token.per_token()[:2].mean())
