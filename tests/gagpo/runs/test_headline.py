"""Which numbers come first: success, mean reward, or both."""

import pytest

from gagpo.runs.headline import headline_of_rows, headlines, is_graded
from gagpo.runs.keeping import best_of
from gagpo.settings import TrainingSettings

SUCCESS = {"iteration": 1, "success_rate": 0.25, "reward_mean": 0.25, "graded_rewards": 0.0}
GRADED = {"iteration": 1, "success_rate": 0.0, "reward_mean": 0.0125, "graded_rewards": 1.0}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ("success_rate",)),
        ([SUCCESS], ("success_rate",)),
        ([{**SUCCESS, "success_rate": 0.0, "reward_mean": 0.0}], ("success_rate",)),
        ([GRADED], ("reward_mean",)),
        ([{**GRADED, "reward_mean": -2.0}], ("reward_mean",)),
        ([GRADED, {**GRADED, "success_rate": 0.1}, GRADED], ("reward_mean", "success_rate")),
        # Rewards of 0 and 1 in an environment that never reports success.
        ([{**SUCCESS, "success_rate": 0.0, "reward_mean": 0.5}], ("reward_mean",)),
        # Success that is assumed from the reward is not logged.
        ([SUCCESS, {"reward_mean": 0.5, "graded_rewards": 1.0}], ("reward_mean",)),
        # Of earlier versions, which logged no graded_rewards.
        ([{"success_rate": 0.2, "reward_mean": 2.0}], ("success_rate",)),
    ],
)
def test_rewards_other_than_0_and_1_come_first(rows, expected):
    assert headline_of_rows(rows) == expected


def test_each_environment_has_a_headline():
    row = {**SUCCESS, **{f"{name}/maths": value for name, value in SUCCESS.items() if name != "iteration"}}
    row |= {f"{name}/shop": value for name, value in GRADED.items() if name != "iteration"} | {"graded_rewards": 0.5}
    output = headlines([row])
    assert output["maths"] == ("success_rate",) and output["shop"] == ("reward_mean",)
    assert output[""] == ("reward_mean", "success_rate")


def test_rewards_of_0_and_1_are_not_graded():
    assert [is_graded(reward) for reward in (0.0, 1.0, 0.5, -1.0, 10.0)] == [False, False, True, True, True]


def test_the_best_checkpoint_has_the_highest_reward_where_no_success_is_reported():
    rewards = (0.1, 0.4, 0.2)
    rows = [{**GRADED, "iteration": i, "reward_mean": reward} for i, reward in enumerate(rewards, 1)]
    assert best_of([1, 2, 3], rows, TrainingSettings()) == 2  # by the running mean 0.1, 0.25, 0.233
    successes = [{**SUCCESS, "iteration": i, "success_rate": rate} for i, rate in enumerate((0.5, 0.1), 1)]
    assert best_of([1, 2], successes, TrainingSettings()) == 1
