"""Episodes of ScienceWorld are exact: alone, in turns with others, in other processes, and after a lost process."""

from __future__ import annotations

import os
import random
import signal

import pytest

from gagpo.envs.scienceworld.experiment import Experiment, SimulatorReply, Variation
from gagpo.envs.scienceworld.simulator import Simulator

pytestmark = pytest.mark.interop
PLACES = (Variation("chemistry-mix-paint-secondary-color", 11, "easy"), Variation("grow-plant", 3))
NOT_UNDERSTOOD = ("", "sing a song", "open the pod bay doors")


def random_actions(simulator: Simulator, start: Variation, count: int) -> list[str]:
    """Actions of the simulator's forms about what the agent sees, some ambiguous and some not understood."""
    rng = random.Random(f"{start}")
    experiment = Experiment(simulator)
    experiment.load(start)
    actions = []
    for _ in range(count):
        formats, objects = experiment.vocabulary()
        format = rng.choice(formats)
        action = " ".join(rng.choice(objects) if word == "OBJ" else word for word in format.split())
        actions.append(rng.choice([action, action, action, *NOT_UNDERSTOOD, "open door", "0"]))
        if experiment.step(actions[-1]).completed:
            break
    return actions


def replies(experiment: Experiment, actions: list[str]) -> list[SimulatorReply]:
    return [experiment.step(action) for action in actions]


@pytest.fixture(scope="module", params=PLACES, ids=lambda start: start.task)
def walk(request: pytest.FixtureRequest, simulator: Simulator) -> tuple[Variation, list[str], list[SimulatorReply]]:
    """A variation, actions, and the replies to them."""
    start = request.param
    actions = random_actions(simulator, start, 12)
    experiment = Experiment(simulator)
    experiment.load(start)
    return start, actions, replies(experiment, actions)


def test_episodes_that_take_turns_do_not_change_each_other(simulator: Simulator, walk) -> None:
    start, actions, expected = walk
    first, second = Experiment(simulator), Experiment(simulator)
    first.load(start)
    second.load(Variation("find-animal", 2))
    mixed = []
    for action in actions:
        mixed.append(first.step(action))
        second.step("wait1")
        second.valid_actions()
    assert mixed == expected


def test_a_killed_process_is_replaced_and_the_episode_goes_on(simulator: Simulator, walk) -> None:
    start, actions, expected = walk
    half = len(actions) // 2
    lost, other = Experiment(simulator), Experiment(simulator)
    lost.load(start)
    before = replies(lost, actions[:half])
    other.load(Variation("find-animal", 2))
    assert simulator.process is not None
    os.kill(simulator.process, signal.SIGKILL)
    with pytest.raises(Exception, match="ScienceWorld process"):
        while True:  # the system may take a moment
            other.step("look around")
    assert before + replies(lost, actions[half:]) == expected  # in a new process


def test_only_the_history_decides(simulator: Simulator, walk) -> None:
    start, actions, expected = walk
    experiment = Experiment(simulator)
    experiment.load(start)
    replies(experiment, actions)
    history = experiment.history
    assert len(history) < len(actions) or not set(actions) & set(NOT_UNDERSTOOD)
    shorter = Experiment(simulator)
    shorter.load(start)
    assert replies(shorter, history)[-1] == expected[max(i for i, a in enumerate(actions) if a == history[-1])]


def test_the_score_of_an_episode_does_not_reach_the_next(simulator: Simulator) -> None:
    """The simulator keeps the score until an action takes time, and ``task`` takes none."""
    experiment = Experiment(simulator)
    for action in experiment.load(Variation("find-non-living-thing", 0), with_gold=True):
        last = experiment.step(action)
    assert (last.score, last.completed) == (100, True)
    experiment.load(Variation("find-non-living-thing", 1))
    first = experiment.step("task")
    assert (first.score, first.completed) == (0, False)


def test_the_gold_path_does_not_change_the_episode(simulator: Simulator) -> None:
    start = Variation("find-animal", 7)
    searched, recorded, without = (Experiment(simulator) for _ in range(3))
    gold = searched.load(start, with_gold=True)
    assert recorded.load(start, with_gold=True) == gold and without.load(start) == []
    assert replies(searched, gold) == replies(recorded, gold) == replies(without, gold)


def test_an_ambiguous_action_waits_for_a_number(simulator: Simulator) -> None:
    experiment = Experiment(simulator)
    experiment.load(Variation("chemistry-mix-paint-secondary-color", 11, "easy"))
    replies(experiment, ["open door", "0"])
    assert experiment.history == ["open door", "0"]
    experiment.load(Variation("chemistry-mix-paint-secondary-color", 11, "easy"))
    replies(experiment, ["open door", "nothing of this kind", "sing a song"])
    assert experiment.history == ["open door", "nothing of this kind"]


@pytest.mark.parametrize("action", ["x" * 100_000, "(" * 500, "look at " * 60, "a\x00b", "%s{}\\", "0", "\N{SNOWMAN}"])
def test_hostile_actions_are_answered(simulator: Simulator, action: str) -> None:
    experiment = Experiment(simulator)
    experiment.load(Variation("find-animal", 0))
    assert not experiment.step(action).valid
    assert experiment.step("look around").valid
