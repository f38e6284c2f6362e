"""Credits against loops that follow the papers' formulas, on random batches, and their invariances."""

import dataclasses
import math
from collections import defaultdict

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
from gagpo.credit.ppo import PpoToken, PpoTurn
from gagpo.credit.reinforce import ReinforceBaseline, ReinforcePlusPlus, token_returns

GAMMA = 0.95


@st.composite
def batches(draw, longest: int = 6, states: int = 4) -> Turns:
    """Up to seven short episodes of up to three tasks, in mixed order, with few states and round rewards."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=7))
    count, episodes = sum(lengths), len(lengths)

    def column(values, size):
        return draw(st.lists(values, min_size=size, max_size=size))

    return Turns(
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
    return [np.flatnonzero(turns.episode_N == episode).tolist() for episode in range(turns.episodes)]


def discounted(turns: Turns, gamma: float, reward=None) -> np.ndarray:
    reward = turns.reward_N - turns.penalty_N if reward is None else reward
    result = np.zeros(turns.turns)
    for path in paths(turns):
        for place, turn in enumerate(path):
            result[turn] = sum(gamma**k * reward[later] for k, later in enumerate(path[place:]))
    return result


def spread(values, ddof=1):
    return np.std(values, ddof=ddof) if len(values) > ddof and max(values) > min(values) else 0.0


@settings(deadline=None, max_examples=80)
@given(
    turns=batches(),
    lam=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    leave_one_out=st.booleans(),
    bootstrap=st.booleans(),
    proxy=st.sampled_from(["return", "outcome"]),
    scope=st.sampled_from(["task", "batch"]),
)
def test_gagpo_by_loops(turns, lam, leave_one_out, bootstrap, proxy, scope):
    returns = discounted(turns, GAMMA)
    outcome = [sum((turns.reward_N - turns.penalty_N)[path]) for path in paths(turns)]
    sample = returns if proxy == "return" else [outcome[episode] for episode in turns.episode_N]
    visits = defaultdict(list)
    for turn in range(turns.turns):
        task = turns.group_E[turns.episode_N[turn]] if scope == "task" else None
        visits[task, turns.state_N[turn]].append(turn)
    value = np.zeros(turns.turns)
    for members in visits.values():
        for turn in members:
            others = [m for m in members if m != turn or not leave_one_out] or [turn]
            value[turn] = np.mean([sample[m] for m in others])
    expected = np.zeros(turns.turns)
    for episode, path in enumerate(paths(turns)):
        advantage, ahead = 0.0, value[path[-1]] if bootstrap and turns.truncated_E[episode] else 0.0
        for turn in reversed(path):
            delta = turns.reward_N[turn] - turns.penalty_N[turn] + GAMMA * ahead - value[turn]
            advantage = delta + GAMMA * lam * advantage
            expected[turn], ahead = advantage, value[turn]
    options = {"leave_one_out": leave_one_out, "bootstrap_truncated": bootstrap, "proxy": proxy, "scope": scope}
    raw = Gagpo(gamma=GAMMA, lam=lam, norm="none", **options).advantage(turns)
    assert raw == pytest.approx(expected, abs=1e-9)

    group = turns.group_E[turns.episode_N]
    state = np.array([group[t] * 100 + turns.state_N[t] for t in range(turns.turns)])
    state = state if scope == "task" else turns.state_N
    for norm, ids in (("group", group), ("batch", np.zeros(turns.turns)), ("scale_only", group), ("state", state)):
        normed = Gagpo(gamma=GAMMA, lam=lam, norm=norm, **options).advantage(turns)
        for one in set(ids.tolist()):
            members = raw[ids == one]
            centre = 0.0 if norm == "scale_only" else members.mean()
            wanted = (members - centre) / (spread(members) + 1e-6) if spread(members) else 0 * members
            assert normed[ids == one] == pytest.approx(wanted, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(turns=batches())
def test_gagpo_identities(turns):
    returns, value = discounted(turns, GAMMA), Gagpo(gamma=GAMMA).value(turns)
    monte_carlo = Gagpo(gamma=GAMMA, lam=1.0, norm="none").advantage(turns)
    assert monte_carlo == pytest.approx(returns - value, abs=1e-9)
    unpunished = Turns(turns.reward_N, turns.episode_N, turns.group_E, state_N=turns.state_N)
    assert Gagpo(gamma=GAMMA, lam=1.0, norm="none").advantage(unpunished) == pytest.approx(
        Gigpo(gamma=GAMMA, norm="mean").step_advantage(unpunished), abs=1e-9
    )
    state, shared = turns.states(), np.bincount(turns.states())
    for one in range(len(shared)):
        assert monte_carlo[state == one].sum() == pytest.approx(0.0, abs=1e-9)
    assert monte_carlo[shared[state] == 1] == pytest.approx(0.0, abs=1e-9)
    for path in paths(turns):
        # Nothing shared from here on: no credit, whatever lambda is.
        alone = [all(shared[state[later]] == 1 for later in path[place:]) for place in range(len(path))]
        credit = Gagpo(gamma=GAMMA, lam=0.5, norm="none").advantage(turns)
        assert all(credit[turn] == 0.0 for turn, free in zip(path, alone, strict=True) if free)


@settings(deadline=None, max_examples=50)
@given(turns=batches(longest=1, states=1))
def test_gagpo_on_single_turns_is_grpo(turns):
    assert Gagpo().advantage(turns) == pytest.approx(Grpo().advantage(turns), abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(turns=batches(), weight=st.sampled_from([0.0, 1.0, 0.5]))
def test_gagpo_trajectory_term_is_grpo(turns, weight):
    difference = Gagpo(trajectory_weight=weight).advantage(turns) - Gagpo().advantage(turns)
    assert difference == pytest.approx(weight * Grpo().advantage(turns), abs=1e-9)


@settings(deadline=None, max_examples=80)
@given(
    turns=batches(),
    norm=st.sampled_from(["mean_std", "mean"]),
    statistics=st.sampled_from(["episode", "turn"]),
    weight=st.sampled_from([1.0, 0.4]),
)
def test_gigpo_by_loops(turns, norm, statistics, weight):
    returns = discounted(turns, GAMMA, turns.reward_N) - turns.penalty_N
    episode_return = [turns.reward_N[path].sum() for path in paths(turns)]
    group = turns.group_E[turns.episode_N]
    expected = np.zeros(turns.turns)
    for turn in range(turns.turns):
        task = group[turn]
        if statistics == "episode":
            sample = [r for r, g in zip(episode_return, turns.group_E, strict=True) if g == task]
        else:
            rows = np.flatnonzero(group == task)
            sample = [episode_return[turns.episode_N[row]] - turns.penalty_N[row] for row in rows]
        score = episode_return[turns.episode_N[turn]] - turns.penalty_N[turn]
        if spread(sample):
            expected[turn] = (score - np.mean(sample)) / (spread(sample) + 1e-6 if norm == "mean_std" else 1.0)
        same = returns[(group == task) & (turns.state_N == turns.state_N[turn])]
        if spread(same):
            step = (returns[turn] - np.mean(same)) / (spread(same) + 1e-6 if norm == "mean_std" else 1.0)
            expected[turn] += weight * step
    mine = Gigpo(gamma=GAMMA, step_weight=weight, norm=norm, statistics=statistics).advantage(turns)
    assert mine == pytest.approx(expected, abs=1e-6)


@settings(deadline=None, max_examples=80)
@given(
    turns=batches(states=2),
    depth=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 1.0]),
    offset=st.sampled_from([1, 2]),
)
def test_hgpo_by_loops(turns, depth, alpha, offset):
    returns = discounted(turns, GAMMA)

    def context(turn, back):
        path = paths(turns)[turns.episode_N[turn]]
        place = path.index(turn)
        if place < back:
            return turn  # no context so deep: a group of its own
        states = [turns.state_N[path[p]] for p in range(place - back, place + 1)]
        return (turns.group_E[turns.episode_N[turn]], *states)

    contexts = [[context(turn, back) for turn in range(turns.turns)] for back in range(depth + 1)]
    expected = np.zeros(turns.turns)
    for turn in range(turns.turns):
        total = weights = 0.0
        for back in range(depth + 1):
            same = [t for t in range(turns.turns) if contexts[back][t] == contexts[back][turn]]
            if len(same) > 1:
                weight, values = (back + offset) ** alpha, returns[same]
                total += weight * (returns[turn] - values.mean()) / (spread(values, 0) + 1e-6)
                weights += weight
        expected[turn] = total / weights if weights else 0.0
    options = {"gamma": GAMMA, "depth": depth, "alpha": alpha, "weight_offset": offset}
    assert Hgpo(**options).advantage(turns) == pytest.approx(expected, abs=1e-6)


def token_path(turns: Turns, path: list[int]) -> list[tuple[float, int]]:
    """(reward, turn) of each response token of an episode; a turn's reward is at its last token."""
    net = turns.reward_N - turns.penalty_N
    return [
        (net[turn] if token == turns.tokens_N[turn] - 1 else 0.0, turn)
        for turn in path
        for token in range(turns.tokens_N[turn])
    ]


@settings(deadline=None, max_examples=50)
@given(turns=batches(), gamma=st.sampled_from([1.0, 0.9, 0.0]))
def test_reinforce_plus_plus_by_loops(turns, gamma):
    expected = []
    for path in paths(turns):
        rewards = [reward for reward, _ in token_path(turns, path)]
        expected += [sum(gamma**k * r for k, r in enumerate(rewards[start:])) for start in range(len(rewards))]
    expected = np.array(expected)
    assert token_returns(turns, gamma) == pytest.approx(expected, abs=1e-9)
    whitened = (
        (expected - expected.mean()) / math.sqrt(spread(expected) ** 2 + 1e-8) if spread(expected) else 0 * expected
    )
    assert ReinforcePlusPlus(gamma=gamma).advantage(turns) == pytest.approx(whitened, abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(turns=batches())
def test_reinforce_baseline_is_whitened_over_tokens(turns):
    per_token = np.repeat(ReinforceBaseline().advantage(turns), turns.tokens_N)
    assert per_token.mean() == pytest.approx(0.0, abs=1e-9)
    if np.abs(per_token).max() > 1e-9:  # returns that differ by rounding alone have no scale
        assert per_token.std(ddof=1) == pytest.approx(1.0, abs=1e-4)
    returns = [turns.return_E[turns.group_E == g].mean() for g in turns.group_E]
    order = np.argsort((turns.return_E - returns)[turns.episode_N], kind="stable")
    assert (np.diff(ReinforceBaseline().advantage(turns)[order]) >= -1e-9).all()


@settings(deadline=None, max_examples=50)
@given(
    turns=batches(), gamma=st.sampled_from([1.0, 0.9]), lam=st.sampled_from([0.0, 0.7, 1.0]), seed=st.integers(0, 99)
)
def test_ppo_by_loops(turns, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    value_N, value_K = rng.normal(size=turns.turns), rng.normal(size=int(turns.tokens_N.sum()))
    net = turns.reward_N - turns.penalty_N

    def gae(rewards, values):
        advantage, ahead, result = 0.0, 0.0, []
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            advantage = reward + gamma * ahead - value + gamma * lam * advantage
            result.append(advantage)
            ahead = value
        return result[::-1]

    by_turn = np.concatenate([gae(net[path].tolist(), value_N[path].tolist()) for path in paths(turns)])
    advantage, target = PpoTurn(gamma=gamma, lam=lam).estimate(turns, value_N)
    assert advantage == pytest.approx(by_turn, abs=1e-9)
    assert target == pytest.approx(by_turn + value_N, abs=1e-9)

    by_token, start = [], 0
    for path in paths(turns):
        rewards = [reward for reward, _ in token_path(turns, path)]
        by_token += gae(rewards, value_K[start : start + len(rewards)].tolist())
        start += len(rewards)
    advantage, target = PpoToken(gamma=gamma, lam=lam).estimate(turns, value_K)
    assert advantage == pytest.approx(np.array(by_token), abs=1e-9)
    assert target == pytest.approx(by_token + value_K, abs=1e-9)


# What must not change a credit -------------------------------------------------------------------------------------


ONE_PER_CREDIT = list({repr(load(name).credit): name for name in reversed(PRESETS)}.values())
"""A preset of each credit with its options."""


def critic_values(turns: Turns, name: str) -> np.ndarray | None:
    """Values that depend on the state alone, so that they move along when turns are reordered."""
    by_turn = 0.3 * (turns.state_N % 3)
    return {"ppo_turn": by_turn, "ppo_token": np.repeat(by_turn, turns.tokens_N)}.get(load(name).credit.name)


def credit_of(turns: Turns, name: str) -> np.ndarray:
    measured = {"entropy_N": turns.tokens_N / 10, "energy_K": np.repeat(1 / (1 + turns.tokens_N), turns.tokens_N)}
    turns = dataclasses.replace(turns, **measured)  # of the turn alone, so that they move along too
    return advantages(turns, load(name).credit, critic_values(turns, name)).advantage_N


def pick(turns: Turns, episodes: list[int], rename=lambda ids: ids, regroup=lambda ids: ids) -> Turns:
    """The chosen episodes in the given order, with other ids for states and groups."""
    order = [turn for episode in episodes for turn in paths(turns)[episode]]
    lengths = [len(paths(turns)[episode]) for episode in episodes]
    return Turns(
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
@settings(deadline=None, max_examples=15)
@given(turns=batches(), data=st.data())
def test_order_of_episodes_and_names_of_states_and_groups_do_not_matter(name, turns, data):
    order = data.draw(st.permutations(range(turns.episodes)))
    changed = pick(turns, order, rename=lambda ids: 10**15 - 7 * ids, regroup=lambda ids: 100 - ids)
    # The critic of this test reads state ids modulo 3, which renaming would change.
    changed = pick(turns, order, regroup=lambda ids: 100 - ids) if load(name).critic else changed
    moved = [turn for episode in order for turn in paths(turns)[episode]]
    assert credit_of(changed, name) == pytest.approx(credit_of(turns, name)[moved], abs=1e-6)


WITHIN_GROUPS = [
    name
    for name in ONE_PER_CREDIT
    if not load(name).credit.name.startswith(("reinforce", "ppo", "weighted_sum", "empirical", "empg"))
]


@pytest.mark.parametrize("name", WITHIN_GROUPS)
@settings(deadline=None, max_examples=15)
@given(turns=batches())
def test_adding_a_group_changes_no_other(name, turns):
    mine = [episode for episode in range(turns.episodes) if turns.group_E[episode] == turns.group_E[0]]
    kept = [turn for episode in mine for turn in paths(turns)[episode]]
    assert credit_of(pick(turns, mine), name) == pytest.approx(credit_of(turns, name)[kept], abs=1e-6)


@pytest.mark.parametrize("name", [name for name in ONE_PER_CREDIT if name != "rejection_sampling"])
@settings(deadline=None, max_examples=10)
@given(turns=batches())
def test_equal_rewards_give_no_advantage(name, turns):
    """All episodes alike: one turn each, the same reward. Asymmetric AGPO alone tells all-wrong from all-right.

    Successes are imitated by rejection sampling, whatever the others did.
    """
    alike = Turns(
        np.full(turns.episodes, 0.7),
        np.arange(turns.episodes),
        turns.group_E,
        state_N=np.zeros(turns.episodes, int),
        success_E=np.ones(turns.episodes, bool),
        entropy_N=turns.tokens_N[: turns.episodes] / 10,
        energy_K=np.linspace(0.1, 0.9, turns.episodes),
    )
    credit = advantages(alike, load(name).credit, critic_values(alike, name))
    assert np.array_equal(credit.advantage_N, np.zeros(turns.episodes))
    assert credit.stats["zero_groups"] == 1.0
    assert credit.stats["equal_return_groups"] == 1.0


def test_statistics_by_hand():
    turns = Turns([0, 10, 0, 0, 0], [0, 0, 1, 2, 3], [0, 0, 1, 1], state_N=[0, 1, 0, 5, 6])
    credit = advantages(turns, Gagpo(norm="none"))
    # V(0) = (9.5 + 0)/2, V(1) = 10: turns 0 and 2 gain and lose 4.75.
    assert credit.advantage_N == pytest.approx([4.75, 0, -4.75, 0, 0])
    assert credit.stats == pytest.approx(
        {
            "zero_groups": 0.5,
            "equal_return_groups": 0.5,
            "coverage": 0.4,
            "advantage_abs": 1.9,
            "advantage_std": math.sqrt(2 * 4.75**2 / 5),
        }
    )


def test_turn_credit_is_repeated_over_tokens_and_token_credit_averaged_over_turns():
    turns = Turns([0, 1, 0], [0, 0, 1], [0, 0], tokens_N=[2, 1, 3])
    credit = advantages(turns, load("dr_grpo").credit)
    assert credit.per_token().tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5]
    by_token = advantages(turns, load("reinforce_plus_plus", {"credit": {"gamma": 0.5}}).credit)
    assert len(by_token.per_token()) == 6
    assert by_token.advantage_N[0] == pytest.approx(by_token.per_token()[:2].mean())
