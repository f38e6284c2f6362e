"""One scripted player through every door: the same observations and rewards everywhere."""

import asyncio
import functools

import gymnasium
import pytest

pytest.importorskip("openenv")
pytest.importorskip("trl")
pytest.importorskip("gagpo.interop.openenv")

from openenv import GenericEnvClient

from benchmarks.serve import start, stop
from gagpo.envs.pool import WorkerPool
from gagpo.interop.games import rows
from gagpo.interop.trl import environment_factory

pytestmark = [pytest.mark.interop, pytest.mark.slow]
COUNT = 50
ENVIRONMENTS_TRIED = {
    "gagpo/ALFWorld-v0": ("valid_unseen", {"counts": {"train": 1, "valid_seen": 1, "valid_unseen": COUNT}}),
    "gagpo/WebShop-v0": ("test", {"products": 200}),
    "gagpo/Math-v0": ("test", {"size": 10, "test_size": 2 * COUNT}),
    "gagpo/SQL-v0": ("test", {"size": 10, "test_size": COUNT}),
}
JUNK = ["nonsense", "15", ""]


@functools.cache
def scripts(env_id):
    """Per task what the expert does with some junk in between, and what Gymnasium answers."""
    split, kwargs = ENVIRONMENTS_TRIED[env_id]
    env = gymnasium.make(env_id, expert=True, max_turns=12, **kwargs)
    played = []
    for number, row in enumerate(rows(env_id, kwargs, split, COUNT)):
        observation, info = env.reset(seed=row["seed"], options={"task": row["task"]})
        actions, answers = [], [(observation, 0.0)]
        over = False
        while not over:
            junk = len(actions) % 3 == 1
            action = JUNK[number % 3] if junk else info["expert_action"] or "look"
            observation, reward, terminated, truncated, info = env.step(action)
            actions.append(action)
            answers.append((observation, reward))
            over = terminated or truncated
        played.append((row, actions, answers, info["success"]))
    env.close()
    assert len(played) == COUNT and sum(success for *_, success in played) > COUNT / 3
    return played


@pytest.fixture(params=sorted(ENVIRONMENTS_TRIED), scope="module")
def env(request):
    split, kwargs = ENVIRONMENTS_TRIED[request.param]
    return request.param, {**kwargs, "max_turns": 12}, split, scripts(request.param)


def test_through_the_pool(env):
    env_id, kwargs, _, played = env
    with WorkerPool(env_id, kwargs, workers=1) as pool:
        for row, actions, answers, _ in played:
            pool.reset(0, row["task"], row["seed"])
            observed = [(event.observation, event.reward) for event in pool.wait()]
            for action in actions:
                pool.step(0, action)
                observed += [(event.observation, event.reward) for event in pool.wait()]
            assert observed == answers


def test_through_openenv(env):
    import json

    env_id, kwargs, split, played = env

    async def play(url):
        async with GenericEnvClient(base_url=url) as client:
            for row, actions, answers, success in played:
                result = await client.reset(seed=row["seed"], split=split, index=row["index"])
                observed = [(result.observation["text"], 0.0)]
                for action in actions:
                    result = await client.step({"action": action})
                    observed.append((result.observation["text"], result.reward))
                assert observed == answers and result.metadata["success"] == success and result.done

    server, url = start(env_id, json.dumps({"port": 0, "workers": 1, "kwargs": kwargs}))
    try:
        asyncio.run(play(url))
    finally:
        stop(server)


def test_through_trl(env):
    env_id, kwargs, _, played = env
    environment = environment_factory(env_id, kwargs)()
    for row, actions, answers, _ in played:
        observed = [environment.reset(**row), *(environment.act(action=action) for action in actions)]
        assert observed == [text for text, _ in answers]
        assert environment.get_reward() == pytest.approx(sum(reward for _, reward in answers))
