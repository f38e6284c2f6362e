"""GraphGPO and MileGPO: worked examples and identities of every rollout graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.credit import BadTurns, Turns
from gagpo.credit.graphgpo import Graphgpo, step_reward
from gagpo.credit.milegpo import Milegpo, branch_credit
from gagpo.credit.statistics.graph import RolloutGraph
from gagpo.data import Episode, Turn, turns_from_episodes
from tests.rejections import rejects

S, A, B, X, Y, WON = range(6)
WEBSHOP = {"norm": "mean", "retain_coverage": 0.5, "rest": 0.5, "eta": 1.0, "retain_branches": True}


@pytest.fixture
def example() -> Turns:
    """``s a | won``, ``s b b | x``, ``s b | y``: the first succeeds with 10."""
    return Turns.of(
        [0, 10, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 2, 2],
        [0, 0, 0],
        state_N=[S, A, S, B, B, S, B],
        end_state_E=[WON, X, Y],
        success_E=[True, False, False],
    )


def by_state(graph: RolloutGraph, value_V: np.ndarray) -> dict[int, float]:
    return dict(zip(graph.turns.state_N.tolist(), value_V[graph.source_N].tolist(), strict=True))


def test_worked_example_on_alfworld(example):
    graph, credit = RolloutGraph.of(example), Milegpo()
    assert by_state(graph, branch_credit(graph)) == pytest.approx({S: 0, A: 1, B: 0})
    assert by_state(graph, Milegpo().progress(graph)) == pytest.approx({S: 0, A: 1, B: 0})
    assert by_state(graph, credit.milestones(graph)) == pytest.approx({S: 0, A: 1, B: 0})
    assert by_state(graph, credit.traps(graph)) == pytest.approx({S: 0, A: 0, B: 1})
    reward = step_reward(graph, credit)
    assert reward == pytest.approx([2, 10, 0, 0, 0, 0, 0])
    assert reward + credit.bonus(graph) == pytest.approx([4, 10, -0.5, 0, 0, -0.5, 0])


def test_worked_example_on_webshop(example):
    graph, credit = RolloutGraph.of(example), Milegpo(**WEBSHOP)
    assert by_state(graph, credit.milestones(graph))[S] == pytest.approx(1.25 / 5.75)
    assert (step_reward(graph, credit) + credit.bonus(graph))[0] == pytest.approx(3.9565, abs=5e-5)
    advantage = credit.advantage(example)
    assert advantage[[0, 2, 5]] == pytest.approx([9.6377, -4.8188, -4.8188], abs=5e-5)


def test_distances_are_shortest_paths(example):
    graph = RolloutGraph.of(example)
    assert graph.distance_V[graph.source_N].tolist() == [2, 1, 2, np.inf, np.inf, 2, np.inf]
    assert graph.distance_V[graph.sink_G].tolist() == [0]
    long = Turns.of(
        np.zeros(4001),
        np.repeat([0, 1], [4000, 1]),
        [0, 0],
        state_N=[*range(4000), 3999],
        success_E=[False, True],
        end_state_E=[0, 9999],
    )
    assert RolloutGraph.of(long).distance_V[:4000].tolist() == list(range(4000, 0, -1))


@st.composite
def rollouts(draw) -> Turns:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=7))
    count, episodes = sum(lengths), len(lengths)

    def column(values, size):
        return draw(st.lists(values, min_size=size, max_size=size))

    return Turns.of(
        reward_N=column(st.sampled_from([0.0, 10.0]), count),
        episode_N=np.repeat(np.arange(episodes), lengths),
        group_E=column(st.integers(0, 1), episodes),
        state_N=column(st.integers(0, 4), count),
        success_E=column(st.booleans(), episodes),
        end_state_E=column(st.integers(0, 5), episodes),
    )


@settings(deadline=None, max_examples=40)
@given(rollouts(), st.floats(0, 2))
def test_identities(turns, eta):
    graph_only, full = Milegpo(eta=0.0).advantage(turns), Milegpo(eta=1.0).advantage(turns)
    assert graph_only == pytest.approx(Graphgpo().advantage(turns), abs=1e-12)
    between = Milegpo(eta=eta).advantage(turns)
    assert between == pytest.approx((1 - eta) * graph_only + eta * full, abs=1e-9)
    graph = RolloutGraph.of(turns)
    for credit in (Milegpo(), Milegpo(**WEBSHOP)):
        bonus = credit.bonus(graph)
        assert (bonus <= 2.5 + 1e-9).all() and (bonus >= -2.5 * 0.25 - 1e-9).all()
        scores = [credit.milestones(graph), credit.traps(graph)]
        assert all(((score >= 0) & (score <= 1)).all() for score in scores)
        assert (scores[0] * scores[1] == 0).all()  # no state is a milestone and a trap


@settings(deadline=None, max_examples=25)
@given(rollouts())
def test_a_group_without_success_has_no_goal(turns):
    failed = Turns.of(
        turns.reward_N,
        turns.episode_N,
        turns.group_E,
        state_N=turns.state_N,
        end_state_E=turns.end_state_E,
        success_E=np.zeros(turns.num_episodes, bool),
    )
    graph = RolloutGraph.of(failed)
    assert (step_reward(graph, Graphgpo()) == 0).all()
    assert (step_reward(graph, Graphgpo(unreachable="farther")) == 0).all()
    assert (Milegpo().milestones(graph) == 0).all()
    assert (Milegpo().bonus(graph) <= 0).all()
    # p- of the group is 1: only what is revisited can be a trap.
    assert (graph.visits.revisits[Milegpo().traps(graph) > 0] > 0).all()


def test_without_end_states_each_failure_has_its_own_end_node(example):
    rollout_graph = RolloutGraph.of(example)
    unknown = RolloutGraph.of(
        Turns.of(
            example.reward_N,
            example.episode_N,
            example.group_E,
            state_N=example.state_N,
            success_E=example.success_E,
        )
    )
    assert unknown.target_N[4] != unknown.target_N[6] and len(unknown.source_M) == len(rollout_graph.source_M)


def test_missing_columns_are_named(example):
    with rejects(BadTurns, key="success_E"):
        Graphgpo().advantage(Turns.of([0], [0], [0], state_N=[0]))
    with rejects(BadTurns, key="state_N"):
        Graphgpo().advantage(Turns.of([0], [0], [0], success_E=[True]))
    with rejects(BadTurns, "1 entries", key="end_state_E"):
        Turns.of([0], [0], [0], end_state_E=[1, 2])


def test_end_states_are_nodes_like_others():
    turns = [Turn("hall", "go", "go", state="h"), Turn("attic", "go", "go", state="a")]
    back = Episode("t", turns=list(turns), end_observation="hall", end_state="h")
    lost = Episode("t", turns=list(turns[:1]))
    by_text = turns_from_episodes([back, lost])
    assert by_text.end_state_E[0] == by_text.state_N[0] and by_text.end_state_E[1] not in by_text.state_N
    assert turns_from_episodes([back], key="state").end_state_E.tolist() == [0]
    assert turns_from_episodes([back], key="history").end_state_E[0] not in turns_from_episodes([back]).state_N
