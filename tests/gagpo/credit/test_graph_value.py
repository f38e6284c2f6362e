"""Graph value: small chains by hand, and the fixed point of random groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.credit import Turns, intern
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.statistics.graph import graph_value


def turns_of(*episodes: list[tuple[str, float]], group: int = 0, **more) -> Turns:
    """Episodes as lists of (state, reward)."""
    steps = [step for episode in episodes for step in episode]
    return Turns.of(
        [reward for _, reward in steps],
        np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
        [group] * len(episodes),
        state_N=intern(state for state, _ in steps),
        **more,
    )


def test_worked_example():
    """Two episodes part at the first state and meet again: the one that was lucky afterwards lends its luck."""
    turns = turns_of(
        [("s", 0.0), ("a", 0.0), ("m", 10.0)], [("s", 0.0), ("b", 0.0), ("m", 0.0)], [("s", 0.0), ("c", 0.0)]
    )
    value = dict(zip(["s", "a", "m", "s", "b", "m", "s", "c"], graph_value(turns, 0.95), strict=True))
    assert value == pytest.approx({"m": 5, "a": 4.75, "b": 4.75, "c": 0, "s": 0.95 * 9.5 / 3})
    assert Gagpo(proxy="graph", lam=0.0, norm="none").advantage(turns) == pytest.approx(
        [1.5042, 0, 5, 1.5042, 0, -5, -3.0083, 0], abs=5e-5
    )
    # By returns b is worth nothing, and the step to it is blamed for what came after.
    assert Gagpo().value(turns)[4] == 0


def test_a_deterministic_path_has_no_advantage():
    turns = turns_of(*[[(f"s{k}", 10.0 * (k == 30)) for k in range(31)]] * 8)
    assert not Gagpo(proxy="graph", lam=0.0).advantage(turns).any()
    assert graph_value(turns, 0.95)[0] == pytest.approx(10 * 0.95**30, abs=1e-9)


@st.composite
def rollouts(draw) -> Turns:
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    count = sum(lengths)
    return Turns.of(
        draw(st.lists(st.sampled_from([0.0, 10.0, -0.1]), min_size=count, max_size=count)),
        np.repeat(np.arange(len(lengths)), lengths),
        draw(st.lists(st.integers(0, 1), min_size=len(lengths), max_size=len(lengths))),
        state_N=draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)),
    )


@settings(deadline=None, max_examples=40)
@given(rollouts(), st.sampled_from([0.0, 0.5, 0.95, 0.99]))
def test_it_is_the_fixed_point(turns, gamma):
    value_N, state_N = graph_value(turns, gamma), turns.states()
    ahead_N = np.where(turns.last_N, 0.0, np.append(value_N[1:], 0.0))
    for state in range(state_N.max() + 1):
        visits = state_N == state
        assert np.ptp(value_N[visits]) == 0  # equal states, equal value
        assert (turns.reward_N + gamma * ahead_N)[visits].mean() == pytest.approx(value_N[visits][0], abs=1e-8)
    # What is above the mean of a state is paid for by what is below it.
    advantage_N = Gagpo(gamma=gamma, proxy="graph", lam=0.0, norm="none").advantage(turns)
    assert np.bincount(state_N, advantage_N) == pytest.approx(0, abs=1e-7)


@settings(deadline=None, max_examples=25)
@given(rollouts())
def test_without_shared_states_it_is_the_return(turns):
    lonely = Turns.of(turns.reward_N, turns.episode_N, turns.group_E, state_N=np.arange(turns.num_turns))
    assert graph_value(lonely, 0.95) == pytest.approx(Gagpo().value(lonely), abs=1e-8)
