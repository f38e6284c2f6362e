"""Questions answered with an MCP server's tools: episodes, checks, training, invalid settings."""

import json
import os

import pytest

pytest.importorskip("mcp", reason="the optional package mcp is not installed")

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.mcp.env import MAX_STARTS
from gagpo.envs.mcp.questions import read_questions
from gagpo.envs.mcp.server import ServerError
from gagpo.envs.pool import WorkerPool
from tests.rejections import rejects

COMMAND = ["python", os.path.join(os.path.dirname(__file__), "arithmetic_server.py")]

LIAR = ["python", os.path.join(os.path.dirname(__file__), "lying_server.py")]


@pytest.fixture
def kwargs(tmp_path):
    rows = []
    for number in range(6):
        calls = [{"name": "add", "arguments": {"a": number, "b": 7}}]
        row = {"question": f"What is {number} + 7?", "answer": number + 7, "calls": calls}
        rows.append({**row, "id": f"sum-{number}", "split": "test" if number > 3 else "train"})
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return {"command": COMMAND, "tasks": str(tmp_path / "sums.jsonl"), "start_timeout": 60.0, "call_timeout": 30.0}


def said(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def test_questions_are_played(kwargs):
    env = make_env("gagpo/MCP-v0", kwargs)
    assert [tool.name for tool in env.tools] == ["add", "remember", "misbehave", "final_answer"]
    observation, _ = env.reset(options={"task": "sum-1"})
    assert observation == "What is 1 + 7?"
    assert env.step(said("add", a=1, b=7))[0] == "8"
    for action in (said("add", a="x"), said("fly"), "", said("final_answer", text=8)):
        observation, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["valid"]) == (0.0, False, False), observation
    observation, reward, terminated, _, info = env.step(said("final_answer", text=" 8.0"))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(options={"task": "sum-1"})
    assert env.step(said("final_answer", text="9"))[1:3] == (0.0, True)
    env.close()


def test_every_episode_has_a_server_of_its_own(kwargs):
    env = make_env("gagpo/MCP-v0", kwargs)
    for word in ("a", "b"):
        env.reset(options={"task": "sum-1"})
        assert env.step(said("remember", word=word))[0] == word
    env.close()


def test_a_server_that_dies_costs_the_turn_and_starts_anew_so_often(kwargs):
    env = make_env("gagpo/MCP-v0", {**kwargs, "max_turns": 20})
    env.reset(options={"task": "sum-1"})
    for _ in range(MAX_STARTS):
        observation, *_, info = env.step(said("misbehave", way="crash"))
        assert "its server starts anew" in observation and not info["valid"]
    with rejects(ServerError, "3 times", "status 3"):
        env.step(said("add", a=1, b=1))
    env.reset(options={"task": "sum-1"})
    assert env.step(said("add", a=1, b=1))[0] == "2"
    env.close()


def test_a_rejected_call_costs_the_turn_and_not_the_server(kwargs):
    env = make_env("gagpo/MCP-v0", {**kwargs, "command": [*LIAR, "rejected"], "max_turns": 20})
    env.reset(options={"task": "sum-1"})
    for call in range(1, 12):
        observation, reward, terminated, truncated, info = env.step(said("echo"))
        expected = ("x must not be bad", False) if call % 2 else (f"call {call}", True)
        assert (observation, info["valid"]) == expected and not (reward or terminated or truncated)
    env.close()


def test_the_expert_wins_in_processes_of_the_pool(kwargs):
    with WorkerPool("gagpo/MCP-v0", {**kwargs, "expert": True}, workers=1) as pool:
        episodes, _ = rollout(ExpertAgent(), pool, group_jobs(["sum-0", "sum-5"], 1, seed=0))
    assert [episode.success for episode in episodes] == [True, True]
    assert [len(episode.turns) for episode in episodes] == [2, 2]


@pytest.mark.slow
def test_it_keeps_its_promises(kwargs):
    results = check("gagpo/MCP-v0", {**kwargs, "max_turns": 3}, episodes=2)
    assert [(result.name, result.detail) for result in results if not result.ok] == []
    (tools,) = (result.detail for result in results if result.name == "tool calls")
    assert tools.startswith("add, remember, misbehave, final_answer: 32 calls are answered")


WRONG = {
    "key 'answer'": '{"question": "a"}',
    "key 'more'": '{"question": "a", "answer": "b", "more": 1}',
    "key 'calls.0.name'": '{"question": "a", "answer": "b", "calls": [{}]}',
    ": the same as line 1": '{"question": "a", "answer": "b"}\n{"question": "a", "answer": "b"}',
    "unknown split 'dev'": '{"question": "a", "answer": "b", "split": "dev"}',
    "has the id 'x'": '{"question": "a", "answer": "b", "id": "x"}\n{"question": "b", "answer": "b", "id": "x"}',
    "not a JSON object": "[" * 100_000,
}


@pytest.mark.parametrize("words", WRONG)
def test_rows_that_are_none_are_named(tmp_path, words):
    (tmp_path / "q.jsonl").write_text(WRONG[words])
    with rejects(InvalidArgument, "q.jsonl", words):
        read_questions(tmp_path / "q.jsonl")


def test_arguments_that_make_no_sense_are_named(kwargs, tmp_path):
    for changes, name in (
        ({"command": ""}, "command must be a program"),
        ({"command": "python 'server.py"}, "No closing quotation"),
        ({"call_timeout": 0}, "call_timeout must be"),
        ({"tasks": str(tmp_path)}, "cannot be read"),
        ({"environment": "HOME, NO_SUCH_KEY"}, "'NO_SUCH_KEY'"),
        ({"environment": [3]}, "[3]"),
    ):
        with rejects(InvalidArgument, name):
            make_env("gagpo/MCP-v0", {**kwargs, **changes})


def test_a_server_from_a_package_index_is_played(tmp_path):
    pytest.importorskip("mcp_server_calculator", reason="the package mcp-server-calculator is not installed")
    calls = [{"name": "calculate", "arguments": {"expression": "12 * 12"}}]
    row = {"question": "What is 12 * 12?", "answer": 144, "id": "square", "split": "train", "calls": calls}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    kwargs = {"command": "python -m mcp_server_calculator", "tasks": str(tmp_path / "q.jsonl"), "start_timeout": 60.0}
    env = make_env("gagpo/MCP-v0", {**kwargs, "expert": True})
    _, info = env.reset(options={"task": "square"})
    observation, *_, info = env.step(info["expert_action"])
    assert observation == "144" and info["valid"]
    assert env.step(said("calculate", expression="import os"))[4]["valid"] is False
    assert env.step(info["expert_action"])[4]["success"]
    env.close()
