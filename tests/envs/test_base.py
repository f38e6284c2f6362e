"""TextEnv: tasks, turns, seeds, info, and misuse."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from gagpo.envs.base import Outcome, Text, TextEnv
from gagpo.envs.tasks import UnknownTask
from gagpo.envs.testing import CorridorEnv
from tests.rejections import rejects

INFO = ["admissible_actions", "split", "state", "success", "task", "task_type", "turn", "valid"]


def start(seed: int = 0, task: str = "door-11", **settings: Any) -> tuple[CorridorEnv, str, dict[str, Any]]:
    env = CorridorEnv(**settings)
    return env, *env.reset(seed=seed, options={"task": task})


def test_importing_the_environments_loads_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "textworld", "alfworld", "datasets", "selenium", "flask", "spacy", "rich"]
    program = f"import sys, gagpo.envs.pool.pool; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_an_episode_from_start_to_success() -> None:
    env, text, info = start()
    location = int(text.split()[3].rstrip("."))
    assert sorted(info) == INFO
    assert (info["task"], info["split"], info["task_type"], info["turn"]) == ("door-11", "test", "corridor", 0)
    assert info["success"] is False and info["valid"] is True
    for turn in range(1, location - 11 + 1):
        text, reward, terminated, truncated, info = env.step("left")
        assert info["turn"] == turn
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert type(reward) is float
    assert env.render() is None
    with pytest.raises(ResetNeeded, match="reset"):
        env.step("left")


def test_an_invalid_action_is_answered_and_costs_a_turn() -> None:
    env, text, _ = start()
    again, reward, terminated, truncated, info = env.step("fly")
    assert (again, reward, terminated, truncated) == (text, 0.0, False, False)
    assert info["valid"] is False and info["turn"] == 1


def test_the_turn_limit_truncates_but_not_when_the_env_ends_on_that_turn() -> None:
    env, _, _ = start(max_turns=3)
    flags = [env.step("right")[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(ResetNeeded):
        env.step("left")
    _, text, _ = start(seed=1)
    turns = int(text.split()[3].rstrip(".")) - 11
    env, _, _ = start(seed=1, max_turns=turns)
    last = [env.step("left") for _ in range(turns)][-1]
    assert last[2:4] == (True, False)


@pytest.mark.parametrize("action", [None, 3, b"left", ["left"]])
def test_an_action_that_is_not_a_string_is_rejected_and_costs_nothing(action: Any) -> None:
    env, _, _ = start()
    with pytest.raises(TypeError, match=f"got {type(action).__name__}"):
        env.step(action)
    assert env.step("left")[4]["turn"] == 1


def test_one_seed_is_one_episode_whatever_was_played_before() -> None:
    env, first, info = start(seed=5)
    for seed in range(20):
        env.reset(seed=seed)
    assert env.reset(seed=5, options={"task": "door-11"}) == (first, info)
    assert len({env.reset(seed=seed, options={"task": "door-11"})[0] for seed in range(20)}) == 4


def test_without_a_task_one_is_drawn_from_the_split_by_the_seed() -> None:
    env = CorridorEnv(split="test")
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(40)]
    assert set(drawn) == {"door-08", "door-09", "door-10", "door-11"}
    assert drawn == [CorridorEnv(split="test").reset(seed=seed)[1]["task"] for seed in range(40)]
    assert {env.reset(seed=seed, options={"split": "train"})[1]["split"] for seed in range(9)} == {"train"}
    assert env.reset(options={"task": "door-00"})[1]["split"] == "train"  # a task of any split, when it is named


def test_a_failed_reset_says_why_and_leaves_no_episode_running() -> None:
    for env in (CorridorEnv(), start()[0]):
        for options, name, advice in (
            ({"task": "door-77"}, "'door-77'", "nearest: door-07"),
            ({"tusk": "door-01"}, "'tusk'", "task, split"),
        ):
            with rejects((UnknownTask, ValueError), name, advice=advice):
                env.reset(options=options)
            with pytest.raises(ResetNeeded):
                env.step("left")


def test_constructor_arguments_are_checked() -> None:
    with rejects(ValueError, "CorridorEnv", "lunch", advice="train, test"):
        CorridorEnv(split="lunch")
    with rejects(ValueError, key="max_turns"):
        CorridorEnv(max_turns=0)


def test_the_expert_is_shown_on_request_until_the_end() -> None:
    env, _, info = start(expert=True)
    while info["expert_action"] is not None:
        _, _, terminated, _, info = env.step(info["expert_action"])
    assert terminated and info["success"]
    assert "expert_action" not in start()[2]


def test_render_shows_the_last_observation() -> None:
    env, text, _ = start(render_mode="ansi")
    assert env.render() == text
    later = env.step("left")[0]
    assert later != text and env.render() == later


def test_a_subclass_must_implement_three_methods() -> None:
    env = TextEnv()
    for method, argument in ((env.tasks, "train"), (env.begin, None), (env.act, "look")):
        with pytest.raises(NotImplementedError):
            method(argument)
    assert env.expert_action() is None


@pytest.mark.filterwarnings("ignore:.*render fps")
def test_gymnasium_accepts_it_and_close_may_be_called_twice() -> None:
    env = gymnasium.make("gagpo-test/Corridor-v0")
    check_env(env.unwrapped)
    env.close()
    env.close()


def test_info_is_json() -> None:
    env, _, info = start(expert=True)
    assert json.loads(json.dumps(info)) == info
    assert json.loads(json.dumps(env.step("left")[4]))["turn"] == 1


def test_extras_are_added_to_info() -> None:
    class Rich(CorridorEnv):
        def act(self, action: str) -> Outcome:
            outcome = super().act(action)
            outcome.extras["score"] = 3
            return outcome

    env = Rich()
    env.reset(seed=0)
    assert env.step("left")[4]["score"] == 3


@given(st.text(), st.integers(0, 40))
def test_a_text_space_contains_the_strings_up_to_its_length(text: str, length: int) -> None:
    space = Text(length)
    assert (text in space) == (len(text) <= length)
    assert space.sample() in space


def test_asynchronous_vector_environments_send_texts() -> None:
    result = [CorridorEnv, CorridorEnv]
    with closing(AsyncVectorEnv(result, shared_memory=False, context="fork")) as vector, closing(CorridorEnv()) as env:
        observations, _ = vector.reset(seed=[1, 2])
        assert list(observations) == [env.reset(seed=seed)[0] for seed in (1, 2)]
        assert list(vector.step(["zoë 漢", "right"])[0]) != list(observations)


def test_a_text_space_is_seeded_comparable_and_rejects_masks() -> None:
    assert [Text(seed=3).sample() for _ in range(2)] == [Text(seed=3).sample()] * 2
    assert Text(5) == Text(5) != Text(6)
    assert repr(Text(5)) == "Text(max_length=5)"
    assert all(value not in Text() for value in (None, b"x", 3))
    with rejects(ValueError, "masked"):
        Text().sample(mask=1)
