"""Who plays in a recipe: a learner that an expert corrects, and an expert whose slips repeat."""

import numpy as np
import pytest

from benchmarks.starters.players import CorrectedAgent, StubbornExpert
from benchmarks.starters.search import SearchCounts, revisits
from gagpo.agents.agent import EpisodeState
from gagpo.agents.prompts import find_prompt
from gagpo.agents.toolbox import ActionFormat
from gagpo.data import Episode, Turn
from tests.rejections import rejects


class Words:
    """Stands in for a context: a token per character."""

    action_format = ActionFormat(find_prompt("plain"))

    def prompt(self, turns, observation, actions=None):
        return np.frombuffer(observation.encode(), np.uint8).astype(np.int32)

    def response(self, text):
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class Learner:
    context = Words()

    def __init__(self):
        self.forgotten = []

    def decide(self, states):
        return [None if state.observation == "full" else Turn.of("mine", "mine") for state in states]

    def forget(self, slot):
        self.forgotten.append(slot)


def play(agent, slot, valid, turns=200):
    episode = Episode("t", seed=slot)
    name = ""
    for number in range(turns):
        state = EpisodeState(slot, episode, "seen", {"expert_action": "yours", "admissible_actions": ["x"]})
        (turn,) = agent.decide([state])
        assert turn.trainable == (turn.action == "yours")
        name += "L" if turn.action == "mine" else "E"
        fine = valid(number) or turn.action == "yours"
        episode.turns.append(
            Turn("seen", turn.response, turn.action, invalid="" if fine else "refused", trainable=turn.trainable)
        )
    return name


def test_the_learner_begins_and_the_expert_takes_over_after_every_failure():
    name = play(CorrectedAgent(Learner(), takeover=0.0, refused=1.0), 1, valid=lambda number: False)
    assert name.startswith("LE") and "LL" not in name
    assert {len(run) for run in name.split("L") if run} == {1, 2, 3, 4}


def test_some_failures_are_followed_by_others_whose_way_out_is_shown_too():
    """An expert that came at once would never be met in the third repetition of what was refused."""
    name = "".join(play(CorrectedAgent(Learner()), slot, valid=lambda number: False) for slot in range(9))
    runs = [len(run) for run in name.split("E") if run]
    assert {1, 2, 3, 4, 5} <= set(runs) and 2.3 < np.mean(runs) < 3.5  # 1 / 0.35


def test_without_failures_it_takes_over_as_often_as_asked():
    assert set(play(CorrectedAgent(Learner(), takeover=0.0), 1, valid=lambda number: True)) == {"L"}
    name = "".join(play(CorrectedAgent(Learner(), takeover=0.25), slot, valid=lambda number: True) for slot in range(9))
    begun = name.count("LE")
    assert 0.19 < begun / name.count("L") < 0.31


def test_it_takes_over_after_a_move_that_the_learner_made_before():
    name = play(CorrectedAgent(Learner(), takeover=0.0, repeated=1.0), 1, valid=lambda number: True)
    assert name.startswith("LLE") and "LL" not in name[1:]


def test_it_takes_over_where_the_learner_walks_in_a_circle():
    agent = CorrectedAgent(Learner(), takeover=0.0, refused=0.0, repeated=0.0, revisited=1.0)
    known = [("go to shelf 1", ROOM), ("go to bed 1", "On the shelf 1, you see nothing.")]
    for slot, (action, expected) in enumerate([("go to shelf 1", "yours"), ("go to desk 1", "mine")]):
        moves = [*known, (action, "On the bed 1, you see a pen 1.")]
        turns = [Turn(observation, move, move, trainable=False) for move, observation in moves]
        (turn,) = agent.decide([EpisodeState(slot, Episode("t", turns=turns), "", {"expert_action": "yours"})])
        assert turn.action == expected


ROOM = "Looking around, you see a bed 1, a desk 1, and a shelf 1.\n\nYour task is to: put two book in desk."
"""The introduction of a game."""


@pytest.mark.parametrize(
    ("task", "moves", "expected"),
    [
        ("put a book in desk", [("go to bed 1", "On the bed 1, you see nothing."), ("go to bed 1", "")], [0, 1]),
        ("put a book in desk", [("go to bed 1", "On the bed 1, you see a book 1."), ("go to bed 1", "")], [0, 0]),
        (  # every receptacle was looked into
            "put a book in desk",
            [(f"go to {name} 1", f"On the {name} 1, you see nothing.") for name in ("bed", "desk", "shelf", "bed")],
            [0, 0, 0, 0],
        ),
        (  # the first book was delivered, and the second is not known
            "put two book in desk",
            [
                ("go to bed 1", "On the bed 1, you see a book 1."),
                ("take book 1 from bed 1", "You pick up the book 1 from the bed 1."),
                ("go to desk 1", "On the desk 1, you see nothing."),
                ("move book 1 to desk 1", "You move the book 1 to the desk 1."),
                ("go to bed 1", "On the bed 1, you see nothing."),
                ("go to shelf 1", ""),
            ],
            [0, 0, 0, 0, 1, 0],
        ),
        (  # with the book in hand a lamp is looked for
            "look at book under the desklamp",
            [
                ("go to bed 1", "On the bed 1, you see a book 1."),
                ("take book 1 from bed 1", "You pick up the book 1 from the bed 1."),
                ("go to bed 1", "Nothing happens."),
                ("go to desk 1", "On the desk 1, you see a desklamp 1."),
                ("go to bed 1", ""),
            ],
            [0, 0, 1, 0, 0],
        ),
        (  # a walk is written as the game understands it
            "put a book in desk",
            [("go to bed 1", "On the bed 1, you see nothing."), ("bed 1", "Nothing happens."), ("go to bed 1", "")],
            [0, 0, 1],
        ),
        ("do as you like", [("go to bed 1", "On the bed 1, you see nothing."), ("go to bed 1", "")], [0, 0]),
    ],
)
def test_a_revisit_is_a_walk_to_what_is_known_while_something_listed_is_not(task, moves, expected):
    introduction = ROOM.partition("put two")[0] + task + "."
    observations = [introduction, *(answer for _, answer in moves)]
    turns = [Turn(text, action, action) for text, (action, _) in zip(observations, moves, strict=False)]
    assert revisits(turns) == [bool(number) for number in expected]
    counts = SearchCounts.of([Episode("t", turns=turns), Episode("t", turns=turns, success=True)])
    assert (counts.episodes, counts.lost, counts.revisits) == (2, 1, 2 * sum(expected))
    assert counts.losing_revisits == (sum(expected) * 4 >= len(moves))


def test_the_experts_moves_carry_the_tokens_that_later_prompts_are_built_on():
    agent = CorrectedAgent(Learner(), takeover=1.0)
    episode = Episode("t", turns=[Turn("", "mine", "mine", trainable=False)])
    states = [EpisodeState(slot, episode, "seen", {"expert_action": "yours"}) for slot in range(2)]
    for turn in agent.decide(states):
        assert bytes(turn.prompt_ids.astype(np.uint8)) == b"seen"
        assert bytes(turn.response_ids.astype(np.uint8)) == b"yours"


def test_a_full_context_ends_the_episode_and_slots_are_forgotten():
    learner = Learner()
    agent = CorrectedAgent(learner)
    assert agent.decide([EpisodeState(3, Episode("t"), "full", {})]) == [None]
    agent.forget(3)
    assert learner.forgotten == [3]


ACTIONS = ["go to shelf 1", "take mug 2 from shelf 1", "look"]


def decisions(agent, valid, count=600):
    """Turns after a move that had an effect or had none."""
    info = {"expert_action": "take mug 1 from shelf 1", "admissible_actions": ACTIONS}
    before = Turn("", "go to bed 9", "go to bed 9", invalid="" if valid else "refused")
    states = [
        EpisodeState(0, Episode("t", seed=seed, turns=[before]), "Nothing happens.", info) for seed in range(count)
    ]
    return agent.decide(states)


def test_only_moves_without_effect_are_followed_by_more_slips():
    assert all(decision.trainable for decision in decisions(StubbornExpert(stubborn=0.5), valid=True))
    stray = [decision for decision in decisions(StubbornExpert(stubborn=0.5), valid=False) if not decision.trainable]
    assert 0.42 < len(stray) / 600 < 0.58
    messages = {decision.action for decision in stray}
    assert "go to bed 9" in messages and "take mug 7 from shelf 1" in messages and len(messages) > 10


@pytest.mark.parametrize("make", [lambda: CorrectedAgent(Learner(), takeover=2), lambda: StubbornExpert(stubborn=2)])
def test_a_probability_is_checked(make):
    with rejects(ValueError, "got 2"):
        make()
