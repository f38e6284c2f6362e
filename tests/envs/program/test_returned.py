"""What an agent or a reward function returns becomes the reward, or a fault that says what to return."""

from tests.envs.program.programs import play, running


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
