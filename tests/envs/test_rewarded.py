"""Reward functions next to the rewards of environments that have their own."""

import sys

import pytest

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.rollout import Job, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.envs.arguments import build, require_arguments
from gagpo.envs.lookup import find_spec, is_cheap
from gagpo.envs.pool.opening import open_pool
from tests.rejections import rejects

FUNCTIONS = """
def trl(prompts, completions, answer=None, **kwargs):
    assert len(prompts) == len(completions) == 1
    return [float(len(completions[0]))]

def words(completion, prompt, state):
    return 0.5 if completion else 0.0

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if ground_truth and ground_truth in solution_str else 0.25}

def graded(task, transcript):
    return {"reward": 10 * task["environment_reward"] + len(transcript), "success": False}

async def later(type, success):
    return 2.0 if success else 1.0

def broken(task, transcript):
    return task["nothing"]

def nan(task, transcript):
    return float("nan")

def tokens(completion_ids):
    return [1.0]
"""
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
ENVIRONMENTS = {
    CORRIDOR: {},
    "gagpo/Math-v0": {"size": 50},
    "gagpo/SQL-v0": {},
    "gagpo/ALFWorld-v0": {"size": "small", "counts": {"train": 4}},
    "FrozenLake-v1": {"actions": ["left", "down", "right", "up"], "is_slippery": False},
}


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    (tmp_path / "scoring.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scoring", raising=False)


def episode(env_id, kwargs, reward, actions=None):
    """Rewards of each step and the last info of an episode of the expert, or of ``actions``."""
    has_expert = actions is None
    env = build(env_id, {**kwargs, "expert": has_expert, "reward": reward}, disable_env_checker=True)
    observation, info = env.reset(seed=3)
    assert info["environment_reward"] == 0.0 and isinstance(observation, str)
    rewards, over = [], False
    actions = iter(actions or [])
    while not over:
        action = info["expert_action"] if has_expert else next(actions)
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        over = terminated or truncated
    env.close()
    return rewards, info


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_function_replaces_the_rewards_of_any_environment(env_id):
    kwargs = ENVIRONMENTS[env_id]
    actions = ["right", "right", "down", "down", "down", "right"] if env_id == "FrozenLake-v1" else None
    rewards, info = episode(env_id, kwargs, "scoring:graded", actions)
    assert info["environment_reward"] > 0 and rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert rewards[-1] == pytest.approx(10 * info["environment_reward"] + len(rewards)) and info["success"] is False
    weights = {"scoring:trl": 0.5, "scoring:later": 1, "environment": 3.0}
    rewards, info = episode(env_id, kwargs, weights, actions)
    length = 2 * len(rewards) - 1  # answers, and what was observed between them
    assert info["success"] is True
    assert sum(rewards) == pytest.approx(0.5 * length + 2.0 + 3.0 * info["environment_reward"])


def test_functions_get_the_right_answer_of_the_data():
    for env_id in ("gagpo/Math-v0", "gagpo/SQL-v0"):
        rewards, _ = episode(env_id, ENVIRONMENTS[env_id], ["scoring:verl", "scoring:words"])
        assert rewards[-1] == 1.5


def test_the_turn_limit_ends_an_episode_with_a_reward():
    rewards, info = episode(CORRIDOR, {"max_turns": 2}, "scoring:later", ["jump", "jump"])
    assert rewards == [0.0, 1.0] and info["success"] is False


def test_worker_processes_call_the_function_and_a_broken_one_fails_the_episode(monkeypatch):
    assert not is_cheap(find_spec("gagpo/ALFWorld-v0"), {"reward": "scoring:graded"})
    jobs = [Job(task, 0, 0, 1, 1) for task in ("door-01", "door-02")]
    with open_pool(CORRIDOR, {"expert": True, "reward": "scoring:graded"}, workers=1) as pool:
        episodes, _ = rollout(ExpertAgent(), pool, jobs)
    assert [episode.outcome for episode in episodes] == ["terminated"] * 2
    for each in episodes:
        assert each.turns[-1].reward == 10 * each.info["environment_reward"] + len(each.turns)
    for name, message in (("broken", "scoring.py, line"), ("nan", "returned nan as the reward")):
        with open_pool(CORRIDOR, {"expert": True, "reward": f"scoring:{name}"}, workers=0) as pool:
            ((failed,), _) = rollout(ExpertAgent(), pool, jobs[:1])
        assert failed.outcome == "failed" and message in failed.info["error"] and "door-01" in failed.info["error"]


@pytest.mark.parametrize(
    ("reward", "key", "names"),
    [
        ("scoring", "reward", ("module:function",)),
        ("scoring:missing", None, ("scoring:missing",)),
        ("nowhere_at_all:f", None, ("nowhere_at_all",)),
        ([], "reward", ()),
        (["scoring:trl", 3], "reward", ()),
        ({"scoring:trl": "much"}, "reward", ("scoring:trl",)),
        ({"scoring:trl": float("nan")}, "reward", ("scoring:trl",)),
        (True, "reward", ()),
        ("scoring:tokens", "reward", ("completion_ids",)),
    ],
)
def test_a_wrong_reward_is_one_line_before_an_episode(reward, key, names):
    with rejects(InvalidArgument, *names, key=key):
        build(CORRIDOR, {"reward": reward})


def test_a_server_keeps_its_rewards_and_programs_their_argument():
    with rejects(InvalidArgument, "server"):
        require_arguments("http://127.0.0.1:9", {"reward": "scoring:trl"})
    require_arguments("gagpo/Program-v0", {"reward": "scoring:trl", "tasks": "none.jsonl"})


def test_the_function_is_a_condition_of_a_result():
    from gagpo.eval.models import evaluate

    results = [
        evaluate("expert", environment=CORRIDOR, tasks=2, workers=0, quiet=True, kwargs=kwargs)
        for kwargs in ({}, {"reward": "scoring:graded"}, {"reward": {"environment": 2}})
    ]
    assert [result.task_set.kwargs.get("reward") for result in results] == [
        None,
        "scoring:graded",
        {"environment": 2},
    ]
    assert results[1].mean_reward.value > 10 and results[2].mean_reward.value == 2 * results[0].mean_reward.value
    assert [result.success.value for result in results] == [1.0, 0.0, 1.0]
