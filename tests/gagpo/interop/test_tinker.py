"""Tinker's message environment over our worlds, driven as its cookbook drives it."""

import asyncio

import pytest

pytest.importorskip("tinker_cookbook.rl.message_env")

from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv

from gagpo.envs.testing import CorridorEnv
from gagpo.interop.games import rows
from gagpo.interop.tinker import WorldMessages, group

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def say(text):
    return {"role": "assistant", "content": text}


def test_an_episode_by_messages():
    async def play():
        env = CorridorEnv()
        (row,) = rows(CORRIDOR, split="test", count=1)
        one = WorldMessages(CORRIDOR, row["task"], row["seed"], style="plain")
        assert isinstance(one, MessageEnv)
        observation, _info = env.reset(seed=row["seed"], options={"task": row["task"]})
        seen = await one.initial_observation()
        assert seen == [{"role": "user", "content": observation}]
        bad = await one.step(say("two\nlines"))
        env.step("")
        assert bad.metrics == {"invalid": 1.0} and bad.next_messages[0] == seen[0]
        total, done, before = 0.0, False, bad.next_messages
        while not done:
            action = env.expert_action()
            observation, reward, *_ = env.step(action)
            result = await one.step(say([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": action}]))
            assert result.next_messages[: len(before)] == before and result.reward == reward
            total, done, before = total + result.reward, result.episode_done, result.next_messages
        assert total == 1.0 and result.metrics["success"] == 1.0

    asyncio.run(play())


def test_a_group_shares_its_start():
    async def starts():
        envs = group(CORRIDOR, rows(CORRIDOR)[3], 4, style="tags")
        return [await env.initial_observation() for env in envs]

    first, *others = asyncio.run(starts())
    assert all(other == first for other in others) and "<action>" in first[0]["content"]


def test_the_cookbook_takes_it():
    class Renderer:
        def get_stop_sequences(self):
            return ["<|end|>"]

    one = WorldMessages(CORRIDOR, "door-01")
    assert EnvFromMessageEnv(Renderer(), one).example_id == "door-01"
