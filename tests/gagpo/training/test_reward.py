"""Training rewards: the environment's, or success alone."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from gagpo.agents.setup import make_env
from gagpo.collecting.on_policy import OnPolicyCollector
from gagpo.collecting.schedule import Schedule
from gagpo.controllers import Controllers
from gagpo.credit import BadTurns, Turns, turns_for
from gagpo.credit.gagpo import Gagpo
from gagpo.data import Episode, Turn
from gagpo.envs.testing import CorridorEnv
from gagpo.eval.episode_files import read_episode_file
from gagpo.eval.viewer.credit import credit_of_run
from gagpo.settings import SettingsError, load
from tests.gagpo.collecting.test_collector import Walker, play
from tests.gagpo.training.test_trainer import run, same, weights
from tests.rejections import rejects


class GenerousEnv(CorridorEnv):
    """A corridor that pays more for walking on than for arriving."""

    def act(self, action):
        outcome = super().act(action)
        outcome.reward = 0.5 if outcome.success else float(self.place) / 10
        return outcome


gymnasium.register("gagpo-test/Generous-v0", entry_point=GenerousEnv)
GENEROUS = f"{__name__}:gagpo-test/Generous-v0"


def tries():
    """A success of two turns that were paid otherwise, and a failure that was paid more."""
    ids = np.zeros(1, np.int32)
    paths = [(0.3, 0.2), (0.4, 0.5, 0.6)]
    return [
        Episode("t", sample=i, success=i == 0, turns=[Turn("o", "x", "x", reward=r, response_ids=ids) for r in path])
        for i, path in enumerate(paths)
    ]


def test_a_success_pays_one_at_its_end_and_nothing_else_pays():
    turns = turns_for(tries(), Gagpo(state_key="observation"), 0.25, True)
    assert turns.reward_N.tolist() == [0, 1, 0, 0, 0]
    assert turns_for(tries(), Gagpo(state_key="observation"), 0.25, [False, True]).reward_N.tolist() == [
        0.3,
        0.2,
        0,
        0,
        0,
    ]
    refused = tries()
    refused[0].turns[0] = replace(refused[0].turns[0], invalid="refused")
    assert turns_for(refused, Gagpo(state_key="observation"), 0.25, True).return_E.tolist() == [0.75, 0]


def test_a_run_by_success_is_that_of_an_environment_that_pays_success_alone(corridor, tmp_path):
    """Bit-equal weights, though the environment pays otherwise; paid by the environment they are others."""
    generous = {"environment": {"id": GENEROUS}}
    ways = {"plain": {}, "by_success": {**generous, "reward": "success"}, "by_env": generous}
    ends = {name: weights(run(corridor(**changes), tmp_path / name).path) for name, changes in ways.items()}
    assert same(ends["by_success"], ends["plain"]) and not same(ends["by_env"], ends["plain"])


def test_groups_are_kept_by_what_training_pays(corridor):
    """Within four turns nobody arrives, at places that pay differently."""
    sampling = {"preset": "gagpo", "controllers": {"dynamic_sampling": {"rounds": 2}}}
    short = {"id": GENEROUS, "kwargs": {"max_turns": 4}}
    for reward, rounds in (("environment", 1), ("success", 2)):
        settings = load(corridor(environment=short, algorithm=sampling, reward=reward))
        tasks = make_env(GENEROUS).tasks("train")
        on_policy_collector = OnPolicyCollector(
            settings, Schedule(settings, {"": tasks}), Controllers(settings.algorithm.controllers)
        )
        assert play(on_policy_collector, Walker()).rounds == rounds


def test_only_turns_that_know_their_success_can_pay_for_it():
    with rejects(BadTurns, key="success_E"):
        Turns.of([0.2], [0], [0]).with_success_reward()


def test_the_viewer_gives_the_credit_that_the_run_gave(corridor, tmp_path):
    """From the episodes' file alone, by what turns were paid and with each environment's own norm."""
    envs = [
        {"name": "one", "id": GENEROUS, "kwargs": {"max_turns": 6}},
        {"name": "two", "id": GENEROUS, "kwargs": {"max_turns": 6}},
    ]
    credit = {"preset": "gagpo", "credit": {"norm": "batch", "state_key": "observation"}, "kl": {"coefficient": 0.0}}
    changes = {"algorithm": credit, "training": {"iterations": 1}, "reward": "success", "invalid_action_penalty": 0.25}
    config = corridor(environment=None, environments=envs, **changes)
    folder = run(config, tmp_path / "run")
    episodes, problems = read_episode_file(folder.path / "episodes" / "train-0001.jsonl")
    assert not problems and {episode.environment for episode in episodes} == {"one", "two"}
    assert any(not turn.valid for episode in episodes for turn in episode.turns)
    for episode, reported in zip(episodes, credit_of_run(folder.path)(episodes), strict=True):
        assert reported.advantages["gagpo"] == pytest.approx([turn.advantage for turn in episode.turns], abs=1e-6)


def test_what_pays_is_one_of_two(corridor):
    with rejects(SettingsError, key="reward"):
        load(corridor(reward="return"))
    alone = load(corridor(reward="success"))
    assert alone.alone(alone.only_environment).reward == "success"
