"""What an agent or a reward function returns becomes the reward, or a fault that says what to return."""

import enum
import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from gagpo.envs.pool.wire import Garbage
from gagpo.envs.program.process import report as as_report
from tests.envs.program.programs import play, running


class Grade(enum.IntEnum):
    GOOD = 1


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, True, Grade.GOOD, Fraction(1), Decimal(1)),
        *(np.float32(1), np.float16(1), np.int64(1), np.uint8(1), np.bool_(True), np.array(1.0), np.array(True)),
        *(torch.tensor(1.0), torch.tensor(1), torch.tensor(1.0, requires_grad=True), torch.tensor(True)),
    ],
    ids=repr,
)
def test_numbers_of_every_kind_are_rewards(value):
    expected = '{"reward": 1.0}'
    assert as_report(value, "the agent") == as_report({"reward": value, "log": object()}, "the agent") == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "returned str as the reward; return a number"),
        (b"1", "returned bytes"),
        ((1.0, True), "returned tuple"),
        (1j, "returned complex"),
        (np.array([1.0]), r"an array of shape \(1,\)"),
        (torch.zeros(2), "an array of shape"),
        (np.str_("1"), "returned str"),
        (np.datetime64("2020-01-01"), "returned date as"),
        ({"reward": None}, "returned NoneType"),
        ({"reward": 1, "success": 1}, "returned 1 as success; return True or False"),
        ({"reward": 1, "success": "yes"}, "returned 'yes' as success"),
    ],
    ids=repr,
)
def test_anything_else_is_a_fault_that_says_what_to_return(value, said):
    with pytest.raises(Garbage, match=said):
        as_report(value, "the agent")


@pytest.mark.parametrize("number", [10**400, 2e9, float("inf"), float("nan"), np.float32("nan")])
def test_a_number_that_is_too_large_or_none_is_refused_with_its_author(number):
    with pytest.raises(Garbage, match=r"the agent returned .* as the reward; return a number from"):
        as_report(number, "the agent")


def test_success_may_be_of_numpy_and_may_be_missing():
    report = {"reward": np.float32(0.5), "success": np.bool_(False), "trace": np.zeros(3)}
    assert json.loads(as_report(report, "the agent")) == {"reward": 0.5, "success": False}
    assert json.loads(as_report({"reward": 1, "success": None}, "the agent")) == {"reward": 1.0}
    assert json.loads(as_report({"success": True}, "the agent")) == {"success": True}


def test_the_last_line_may_hold_characters_that_end_lines_elsewhere(tmp_path):
    source = (
        "chat(user('go'))\nprint('12 %\\r99 %\\r' + json.dumps(dict(note='\u2028', reward=1), ensure_ascii=False))\n"
    )
    with running(tmp_path, source) as pool:
        assert play(pool, "ok")[-1].reward == 1.0


AGENT = """
import asyncio
import os
import sys

import httpx2
import numpy as np

RETURNED = {"number": np.float32(1.0), "flag": np.bool_(True), "text": "1.0", "nan": np.float32("nan")}

async def play(task, client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
    if task["id"] == "posted":
        key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        async with httpx2.AsyncClient() as http:
            await http.post(os.environ["GAGPO_REWARD_URL"], json={"reward": 0.5}, headers=key)
    if task["id"] == "interrupt":
        raise KeyboardInterrupt
    if task["id"] == "exit":
        sys.exit(3)
    if task["id"] == "cancel":
        raise asyncio.CancelledError
    return RETURNED.get(task["id"])
"""


def test_what_an_agent_returns_or_raises_reaches_its_own_episode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "returning.py").write_text(AGENT)
    rewards = {"number": 1.0, "flag": 1.0, "posted": 0.5}
    faults = {
        "text": "the agent returned str as the reward; return a number",
        "nan": "returned nan as the reward",
        "nothing": "ended without a reward",
        "interrupt": "KeyboardInterrupt",
        "exit": "SystemExit: 3",
        "cancel": "CancelledError",
    }
    with running(tmp_path, "", rows=[*rewards, *faults], command="", agent="returning:play") as pool:
        pool._max_restarts = 0
        assert {task: play(pool, "ok", task=task)[-1].reward for task in rewards} == rewards
        for task, messages in faults.items():
            event = play(pool, "ok", task=task)[-1]
            assert event.kind == "failed" and messages in event.error, (task, event)
