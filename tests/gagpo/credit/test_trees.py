"""Groups that are trees: credit against brute force over all paths, and nothing told twice."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.episodes import Episode, Turn
from gagpo.credit import CREDITS, BadTurns, Turns, advantages, find, names
from gagpo.credit.gagpo import Gagpo
from gagpo.credit.registry import make
from gagpo.credit.trees.at2po import At2po
from gagpo.credit.trees.tree_grpo import TreeGrpo
from gagpo.credit.turns.tree import along_paths, mean_of_paths, path_lengths, tree_recursion
from gagpo.learning.batch import build_rows
from tests.oracles.turn_level import trees

REWARDS = st.sampled_from([0.0, 0.0, 1.0, -0.5, 10.0])


@st.composite
def forests(draw, groups: int = 2, longest: int = 5) -> list[list[Episode]]:
    """Groups of one to six tries, the later ones branches of any before them; shared turns are one object."""
    found = []
    for group in range(draw(st.integers(1, groups))):
        tries: list[Episode] = []
        for sample in range(draw(st.integers(1, 6))):
            parents = [one for one in tries if len(one.turns) > one.fork + 1]
            episode = Episode(f"task {group}", group=group, sample=sample, outcome="terminated")
            if parents and draw(st.booleans()):
                parent = draw(st.sampled_from(parents))
                episode.parent, episode.fork = parent.sample, draw(st.integers(parent.fork + 1, len(parent.turns) - 1))
                episode.turns = parent.turns[: episode.fork]
            for _ in range(draw(st.integers(1, longest))):
                turn = Turn("", "", "", reward=draw(REWARDS), state=str(draw(st.integers(0, 3))))
                before = [*episode.turns[-1].prompt_ids, *episode.turns[-1].response_ids] if episode.turns else [1]
                turn.prompt_ids = np.array([*before, 7], np.int32)
                turn.response_ids = np.array(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)), np.int32)
                turn.logprobs = np.array([-draw(st.sampled_from([0.1, 0.7, 2.0]))] * len(turn.response_ids), np.float32)
                episode.turns.append(turn)
            episode.success = draw(st.booleans())
            tries.append(episode)
        found.append(tries)
    return found


def columns(forest, **options) -> Turns:
    return Turns.from_episodes([one for group in forest for one in group], key="state", surprise=True, **options)


def by_oracle(forest, number) -> list[float]:
    """``number(tries, node)`` of every turn that was played, in the order of the columns."""
    found = []
    for group in forest:
        nodes = {}
        for episode in group:
            for turn in episode.own:
                nodes[id(turn)] = trees.Node(turn.reward, int(turn.state), -float(turn.logprobs.mean()))
        tries = [[nodes[id(turn)] for turn in episode.turns] for episode in group]
        found += [number(tries, nodes[id(turn)]) for episode in group for turn in episode.own]
    return found


@settings(deadline=None, max_examples=150)
@given(forest=forests())
def test_arpo_tree_grpo_and_at2po_by_looking_at_all_paths(forest):
    turns = columns(forest)
    assert advantages(turns, make("grpo")).advantage == pytest.approx(by_oracle(forest, trees.arpo), abs=1e-9)
    assert TreeGrpo().advantage(turns) == pytest.approx(by_oracle(forest, trees.tree_grpo), abs=1e-9)
    assert At2po().advantage(turns) == pytest.approx(by_oracle(forest, trees.at2po), abs=1e-6)
    alike = by_oracle(forest, lambda tries, node: trees.at2po(tries, node, lambda _: 1.0))
    assert At2po(children="mean").advantage(turns) == pytest.approx(alike, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(forest=forests(groups=1), lam=st.sampled_from([0.0, 0.8, 1.0]))
def test_gagpo_on_a_tree_by_looking_at_all_paths(forest, lam):
    mine = Gagpo(gamma=0.9, lam=lam, norm="none").advantage(columns(forest))
    expected = by_oracle(forest, lambda tries, node: trees.gagpo(tries, node, 0.9, lam))
    assert mine == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(forest=forests())
def test_what_a_tree_sums_to(forest):
    turns = columns(forest)
    episodes = [one for group in forest for one in group]
    assert turns.return_E == pytest.approx([one.reward for one in episodes])
    assert path_lengths(turns).tolist() == [len(one.turns) for one in episodes]
    assert turns.turns == len({id(turn) for one in episodes for turn in one.turns})
    assert tree_recursion(turns.net_reward_N, turns, 0.9) == pytest.approx(
        by_oracle(forest, lambda tries, node: trees.to_go(tries, node, 0.9))
    )
    leaves = mean_of_paths(turns.return_E, turns)
    assert leaves == pytest.approx(
        by_oracle(forest, lambda t, n: np.mean([trees.outcomes(t)[i] for i in trees.through(t, n)]))
    )
    lengths = along_paths(turns, lambda paths, _: np.repeat(path_lengths(turns), path_lengths(turns)).astype(float))
    assert lengths == pytest.approx(mean_of_paths(path_lengths(turns).astype(float), turns))


@settings(deadline=None, max_examples=100)
@given(forest=forests())
def test_every_token_that_was_played_is_trained_once(forest):
    episodes = [one for group in forest for one in group]
    rows, turns = build_rows(episodes), columns(forest)
    played = {id(turn): turn for one in episodes for turn in one.turns}.values()
    tokens = np.concatenate([row.token_K for row in rows])
    assert sorted(tokens.tolist()) == list(range(sum(len(turn.response_ids) for turn in played)))
    assert len(tokens) == turns.tokens_N.sum()
    ids = np.concatenate([row.ids[row.place_K] for row in rows])
    own = np.concatenate([turn.response_ids for one in episodes for turn in one.own])
    assert ids[np.argsort(tokens)].tolist() == own.tolist()
    for row in rows:
        for turn in set(row.turn_K.tolist()):
            assert (row.turn_K == turn).sum() == turns.tokens_N[turn]


@settings(deadline=None, max_examples=40)
@given(forest=forests())
def test_every_credit_takes_a_tree_and_is_the_same_without_branches(forest):
    turns = columns(forest, features=8, texts=True)
    measured = {"entropy_N": np.linspace(0, 2, turns.turns), "energy_K": np.linspace(0, 1, int(turns.tokens_N.sum()))}
    turns = dataclasses.replace(turns, **measured)
    for name in names():
        credit = make(name)
        value = None
        if credit.critic:
            value = np.linspace(-1, 1, int(turns.tokens_N.sum()) if credit.level == "token" else turns.turns)
        if name == "agpo_asymmetric":
            credit = find(name).model_validate({"reward": "sign"})
        found = advantages(turns, credit, value).advantage
        assert np.isfinite(found).all(), name
        if turns.parent_E is None:
            plain = credit.advantage_and_target(turns, value)[0] if credit.critic else credit.advantage(turns)
            assert found.tobytes() == plain.tobytes(), name


def test_credits_that_read_a_tree_are_bit_equal_to_before_where_nothing_branches():
    rng = np.random.default_rng(0)
    episode_N = np.sort(rng.integers(0, 40, 400))
    episode_N = np.unique(episode_N, return_inverse=True)[1]
    count = int(episode_N.max()) + 1
    plain = Turns(rng.normal(size=400), episode_N, rng.integers(0, 5, count), state_N=rng.integers(0, 9, 400))
    marked = Turns(
        plain.reward_N, episode_N, plain.group_E, state_N=plain.state_N, parent_E=np.full(count, -1, np.int64)
    )
    for credit in (Gagpo(), Gagpo(proxy="outcome"), Gagpo(proxy="graph"), make("grpo")):
        assert advantages(plain, credit).advantage == pytest.approx(advantages(marked, credit).advantage, abs=1e-12)


def test_siblings_are_compared_exactly():
    # One try of three turns fails; two branches take its second turn again, one of them succeeds.
    turns = Turns(
        reward_N=[0, 0, 0, 10, 0],
        episode_N=[0, 0, 0, 1, 2],
        group_E=[0, 0, 0],
        state_N=[0, 1, 2, 1, 1],
        parent_E=[-1, 0, 0],
    )
    found = Gagpo(gamma=1.0, lam=0.0, norm="none").advantage(turns)
    assert found.tolist() == pytest.approx([0, -10 / 3, 0, 20 / 3, -10 / 3])
    assert turns.return_E.tolist() == [0, 10, 0]


BAD = {
    "of a later episode": ({"parent_E": [-1, 2]}, "not within an earlier episode"),
    "behind a last turn": ({"parent_E": [-1, 1]}, "not within an earlier episode"),
    "of another group": ({"parent_E": [-1, 0], "group_E": [0, 1]}, "another task group"),
    "of fractions": ({"parent_E": [-1.0, 0.5]}, "integers"),
    "too few": ({"parent_E": [-1]}, "2 entries"),
}


@pytest.mark.parametrize("case", BAD)
def test_branches_that_cannot_be_are_refused(case):
    changes, words = BAD[case]
    with pytest.raises(BadTurns, match=words):
        Turns(**{"reward_N": [0, 0, 1], "episode_N": [0, 0, 1], "group_E": [0, 0], **changes})


def test_a_branch_without_its_parent_is_refused():
    turn = Turn("", "", "")
    branch = Episode("a task", sample=3, outcome="terminated", parent=0, fork=1, turns=[turn, turn])
    with pytest.raises(BadTurns, match="try 0 of its group"):
        Turns.from_episodes([branch])


def test_at2po_asks_for_what_it_weighs_by():
    turns = Turns([0, 0, 1], [0, 0, 1], [0, 0], parent_E=[-1, 0])
    with pytest.raises(BadTurns, match="surprise_N"):
        At2po().advantage(turns)
    assert CREDITS.ours["at2po"] and math.isclose(float(At2po(children="mean").advantage(turns)[0]), 0.0, abs_tol=1e-9)
