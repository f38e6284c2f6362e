"""The columns that credit is computed from, and the errors of bad ones."""

from dataclasses import replace

import numpy as np
import pytest

from gagpo.credit import BadTurns, Turns, intern
from gagpo.data import Episode, Turn, renumber, turns_from_episodes
from tests.rejections import rejects


def episode(*steps: tuple[str, str, float], group: int = 0, **more) -> Episode:
    """Steps are (observation, action, reward); the state key is the observation in capitals."""
    turns = [
        Turn(observation=o, response=a, action=a, reward=r, state=o.upper(), response_ids=np.zeros(2, np.int32))
        for o, a, r in steps
    ]
    return Episode(task="t", group=group, turns=turns, **more)


def test_columns_of_episodes():
    episodes = [
        episode(("hall", "north", 0.0), ("attic", "take", 1.0), group=4, success=True, outcome="terminated"),
        episode(("hall", "wait", 0.0), group=4, outcome="truncated"),
    ]
    episodes[1].turns[0] = replace(episodes[1].turns[0], invalid="refused")
    turns = turns_from_episodes(episodes, penalty=0.1)
    assert turns.reward_N.tolist() == [0, 1, 0]
    assert turns.penalty_N.tolist() == [0, 0, 0.1]
    assert turns.net_reward_N.tolist() == [0, 1, -0.1]
    assert turns.return_E.tolist() == [1, -0.1]
    assert turns.episode_N.tolist() == [0, 0, 1]
    assert turns.group_E.tolist() == [4, 4]
    assert turns.state_N.tolist() == [0, 1, 0]
    assert turns.tokens_N.tolist() == [2, 2, 2]
    assert turns.truncated_E.tolist() == [False, True]
    assert turns.success_E.tolist() == [True, False]
    assert turns.last_N.tolist() == [False, True, True]


def answered(answer, group=0, success=False, response="some words"):
    info = {} if answer is None else {"answer": answer}
    return episode(("2+2?", response, 0.0), group=group, success=success, info=info)


def test_votes_are_answers_whatever_the_wording_of_the_response():
    wordings = [answered("4", response=text) for text in ("4", "It is 4.", "four, so 4", r"\boxed{4}")]
    assert turns_from_episodes(wordings).vote_E.tolist() == [0, 0, 0, 0]
    assert turns_from_episodes([*wordings, answered("5")]).vote_E.tolist() == [0, 0, 0, 0, 1]
    # Several turns do not matter, the answer is that of the episode; numbers and texts are equal.
    longer = episode(("2+2?", "?", 0.0), ("well?", "4", 1.0), info={"answer": 4})
    assert turns_from_episodes([*wordings, longer]).vote_E.tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_votes_are_successes_in_a_group_with_an_episode_without_an_answer(missing):
    full = [answered("4", group=1), answered("5", group=1), answered("4", group=1, success=True)]
    broken = [answered("4", success=True), answered("5"), answered(missing), answered("4")]
    assert turns_from_episodes(broken).vote_E is None  # the default of every reader is the success
    vote_E = turns_from_episodes([*broken, *full]).vote_E
    assert vote_E[:4].tolist() == [0, 1, 1, 1] and vote_E[4:].tolist() == [2, 3, 2]


def test_an_answer_of_zero_or_false_is_an_answer():
    assert turns_from_episodes([answered(0), answered(False), answered(0)]).vote_E.tolist() == [0, 1, 0]


def test_states_by_key():
    episodes = [
        episode(("hall", "north", 0), ("attic", "south", 0), ("hall", "north", 0)),
        episode(("hall", "north", 0), ("attic", "wait", 0), ("attic", "south", 0)),
        episode(("hall", "jump", 0), ("attic", "wait", 0)),
    ]
    episodes[2].turns[1] = replace(episodes[2].turns[1], state="attic, lamp broken")
    by_observation = turns_from_episodes(episodes, key="observation").states()
    assert by_observation.tolist() == [0, 1, 0, 0, 1, 1, 0, 1]
    by_state = turns_from_episodes(episodes, key="state").states()
    assert by_state.tolist() == [0, 1, 0, 0, 1, 1, 0, 2]
    by_history = turns_from_episodes(episodes, key="history").states()
    # Equal are the starts, and the second turns of the first two episodes, which did the same.
    assert by_history.tolist() == [0, 1, 2, 0, 1, 3, 0, 4]


def test_a_missing_state_is_named_with_its_key():
    episodes = [episode(("hall", "north", 0), ("attic", "wait", 0))]
    episodes[0].turns[1] = replace(episodes[0].turns[1], state=None)
    with rejects(BadTurns, "key='state'", "turn 1", "episode 0", "'t'", key="key", advice="key='observation'"):
        turns_from_episodes(episodes, key="state")
    assert turns_from_episodes(episodes, key="observation").num_turns == 2


def test_failed_and_empty_episodes_and_unknown_keys_are_refused():
    with rejects(BadTurns, "failed", where="episode 1 (task 't')"):
        turns_from_episodes([episode(("a", "b", 0)), episode(("a", "b", 0), outcome="failed")])
    with rejects(BadTurns, "turns", where="episode 0 (task 't')"):
        turns_from_episodes([episode()])
    with rejects(BadTurns, "'text'"):
        turns_from_episodes([episode(("a", "b", 0))], key="text")
    with rejects(BadTurns, "0", key="penalty"):
        turns_from_episodes([episode(("a", "b", 0))], penalty=-1)
    with rejects(BadTurns, "turns"):
        turns_from_episodes([])


@pytest.mark.parametrize(
    ("columns", "key", "names"),
    [
        ({"reward_N": [], "episode_N": [], "group_E": []}, None, ("turns",)),
        ({"reward_N": [np.nan, 0.0]}, "reward_N", ("turn 0",)),
        ({"reward_N": [0.0, np.inf]}, "reward_N", ("turn 1",)),
        ({"reward_N": 3}, "reward_N", ()),
        ({"episode_N": [0]}, "episode_N", ("2 entries",)),
        ({"episode_N": [[0, 0]]}, "episode_N", ()),
        ({"episode_N": [1, 0], "group_E": [0, 0]}, "episode_N", ("turn 1",)),
        ({"episode_N": [0, 2], "group_E": [0, 0]}, "episode_N", ("0", "1")),
        ({"episode_N": [1, 1], "group_E": [0, 0]}, None, ("episode 0",)),
        ({"episode_N": [0, 2], "group_E": [0, 0, 0]}, None, ("episode 1",)),
        ({"group_E": [0, 0]}, None, ("episode 1",)),
        ({"episode_N": [-1, 0]}, "episode_N", ("from 0 to 0",)),
        ({"group_E": [0.5]}, "group_E", ()),
        ({"state_N": [1.5, 2.0]}, "state_N", ()),
        ({"penalty_N": [-0.1, 0.0]}, "penalty_N", ("turn 0",)),
        ({"tokens_N": [3, -1]}, "tokens_N", ("turn 1",)),
        ({"success_E": [True, False]}, "success_E", ("1 entries",)),
    ],
)
def test_bad_columns_are_named(columns, key, names):
    with rejects(BadTurns, *names, key=key):
        Turns.of(**({"reward_N": [0.0, 1.0], "episode_N": [0, 0], "group_E": [0]} | columns))


def test_codings_of_episode_returns():
    turns = Turns.of([0, 10, 0], [0, 0, 1], [0, 0], penalty_N=[0, 0, 0.1], success_E=[True, False])
    assert turns.episode_reward("sum").tolist() == [10, -0.1]
    assert turns.episode_reward("success").tolist() == [1, 0]
    with rejects(BadTurns, key="success_E"):
        Turns.of([0], [0], [0]).episode_reward("success")


def test_states_are_optional_for_credits_that_do_not_compare_them():
    with rejects(BadTurns, key="state_N"):
        Turns.of([0], [0], [0]).states()


def test_interning_and_renumbering():
    assert intern(["b", "a", "b", ("a",)]).tolist() == [0, 1, 0, 2]
    assert renumber(np.array([7, 3, 7, 10**12])).tolist() == [1, 0, 1, 2]
    assert renumber(np.array([-2, 5, -2])).tolist() == [0, 1, 0]


def test_columns_are_built_by_of():
    with rejects(BadTurns, key="reward_N", advice="Turns.of"):
        Turns([0, 1], [0, 0], [0])
    with rejects(BadTurns, "'sucess_E'", advice="success_E"):
        Turns.of([0, 1], [0, 0], [0], sucess_E=[True])


def test_other_columns_are_checked_too():
    turns = Turns.of([0, 1], [0, 0], [0])
    assert turns.with_columns(reward_N=[2, 3]).return_E.tolist() == [5.0] and turns.return_E.tolist() == [1.0]
    with rejects(BadTurns, "2 entries", key="energy_K"):
        turns.with_columns(energy_K=[0.5])


def test_every_column_is_selected_along_its_declared_axis():
    turns = Turns.of(
        [0, 1, 2],
        [0, 0, 1],
        [5, 9],
        tokens_N=[1, 2, 3],
        energy_K=np.arange(6.0),
        success_E=[True, False],
        state_N=[4, 5, 6],
    )
    select = turns.select(np.array([False, True]))
    assert (select.num_turns, select.num_episodes, select.num_groups, select.num_tokens) == (1, 1, 1, 3)
    assert select.energy_K.tolist() == [3, 4, 5] and select.state_N.tolist() == [6] and select.group_E.tolist() == [9]
    assert select.episode_N.tolist() == [0] and select.success_E.tolist() == [False]
