"""Environments of verifiers as worlds, with the package itself: multi-turn, single-turn, and what cannot be played."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1")

from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.lookup import find_spec
from gagpo.envs.pool import Pool
from gagpo.envs.testing import CorridorEnv
from gagpo.interop.games import rows
from gagpo.interop.worlds.verifiers import CannotPlay, VerifiersWorld, WorldBroke

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
ROUND_TRIP = {"settings": {"env_id": CORRIDOR, "style": "plain"}, "test": {"split": "test"}}

SUMS = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str
    fault: str = ""


class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace):
        if task.fault == "raise":
            raise ValueError("no grade")
        return 0.5 * float(trace.last_reply == task.answer)

    @vf.metric
    async def length(self, trace):
        return float(len(trace.last_reply))


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for n in range(20):
            yield Sum(Data(prompt=f"{n} + 1?", system_prompt="Add.", answer=str(n + 1)), self.config.task)


__all__ = ["Sums"]
"""
TALK = """
import verifiers.v1 as vf


class Told(vf.Task[vf.TaskData]):
    @vf.stop
    async def enough(self, trace):
        return trace.last_reply == "enough"

    @vf.reward
    async def replies(self, trace):
        return float(trace.num_turns)


class Tells(vf.Taskset[Told, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        n = 0
        while True:
            yield Told(vf.TaskData(name=f"t{n:02d}", prompt="Begin."), self.config.task)
            n += 1


class TalkConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            while not segment.terminated and segment.last_reply != "bye":
                if segment.last_reply == "break":
                    raise RuntimeError("broken\\nworld")
                segment = await talk.turn(f"You said {segment.last_reply}.")


__all__ = ["Tells", "Talk"]
"""
BOXED = SUMS.replace("async def right(self, task, trace)", "async def right(self, task, trace, runtime)")
TWO = TALK.replace(
    '    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})\n',
    '    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})\n'
    '    judge: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})\n',
)
WORLDS = "from gagpo.interop.verifiers import WorldEnv, WorldTaskset\n\n__all__ = ['WorldEnv', 'WorldTaskset']\n"


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    texts = {"sums": SUMS, "talk": TALK, "boxed": BOXED, "two": TWO, "corridor_worlds": WORLDS}
    for name, text in texts.items():
        (tmp_path / f"gagpo_test_{name}.py").write_text(text)
        sys.modules.pop(f"gagpo_test_{name}", None)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def world(name, **arguments):
    return VerifiersWorld(f"verifiers://gagpo_test_{name}", **arguments)


def test_our_own_world_through_verifiers_is_the_same_world():
    """Every observation and reward, and the success: the corridor as verifiers' environment, and the corridor."""
    theirs, ours = world("corridor_worlds", **ROUND_TRIP), CorridorEnv()
    for split in ("train", "test"):
        assert set(theirs.tasks(split).ids) == set(ours.tasks(split).ids)
        starts = {row["task"]: row["seed"] for row in rows(CORRIDOR, split=split)}
        for task in list(starts)[:3]:
            shown, _ = theirs.reset(options={"task": task, "split": split})
            observation, _ = ours.reset(seed=starts[task], options={"task": task})
            assert observation in shown
            over, paid, earned = False, 0.0, 0.0
            while not over:
                action = "left" if ours.place > ours.door else "right"
                observation, reward, over, _, info = ours.step(action)
                shown, gained, ended, _, said = theirs.step(action)
                paid, earned = paid + reward, earned + gained
                assert ended == over and (over or observation in shown)
            assert (paid, info["success"]) == (earned, said["success"]) == (1.0, True)


def test_a_single_turn_is_scored_by_its_own_rubric():
    one = world("sums")
    assert (len(one.tasks("train")), len(one.tasks("test"))) == (18, 2)
    for reply, reward in (("4", 1.0), ("5", 0.0)):
        shown, _ = one.reset(options={"task": "3"})
        assert shown == "Add.\n\n3 + 1?"
        _, gained, terminated, truncated, info = one.step(reply)
        assert (gained, terminated, truncated, info["success"]) == (reward, True, False, reward == 1.0)


def test_stops_limits_and_ends_pay_what_was_earned():
    one = world("talk", count=10, max_turns=3, solved=2)
    seen = {}
    for how, replies in {"itself": ["a", "bye"], "stop": ["enough"], "limit": ["a", "b", "c"]}.items():
        shown, _ = one.reset(options={"task": "t03"})
        assert shown == "Begin."
        for number, reply in enumerate(replies, start=1):
            shown, reward, terminated, truncated, info = one.step(reply)
            assert number == len(replies) or (shown, reward) == (f"You said {reply}.", 0.0)
        seen[how] = (reward, terminated, truncated, info["success"])
    assert seen == {
        "itself": (2.0, True, False, True),
        "stop": (1.0, True, False, False),
        "limit": (3.0, False, True, True),
    }


def test_what_breaks_is_an_error_of_the_world_and_the_next_episode_is_sound():
    one = world("talk", count=4)
    one.reset(options={"task": "t00"})
    with pytest.raises(WorldBroke, match="RuntimeError: broken") as caught:
        one.step("break")
    assert "\n" not in str(caught.value)
    one.reset(options={"task": "t00"})
    one.reset(options={"task": "t01"})  # in the middle of an episode
    assert one.step("a")[0] == "You said a."
    one.close()
    one.close()


@pytest.mark.parametrize("name, words", [("boxed", "needs a box to run in"), ("two", "the agents player, judge")])
def test_what_cannot_be_played_is_refused_at_once(name, words):
    with pytest.raises(CannotPlay, match=words):
        world(name, count=4)


def test_what_is_not_there_is_said():
    with pytest.raises(InvalidArgument, match="verifiers://gagpo_test_nothing"):
        world("nothing")
    with pytest.raises(InvalidArgument, match="held_out"):
        world("sums", held_out=1.0)
    with pytest.raises(InvalidArgument, match="verifiers://gagpo_test_sums"):
        world("sums", settings={"houses": 3})
    assert find_spec("verifiers://sums").kwargs == {"taskset": "verifiers://sums"}


def test_a_pool_plays_it(modules, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{os.environ.get('PYTHONPATH', '')}")
    with Pool("verifiers://gagpo_test_talk", {"count": 10}, workers=1) as pool:
        for slot in range(3):
            pool.reset(slot, f"t0{slot}")
        events = pool.wait(120, at_least=3)
        assert {event.observation for event in events} == {"Begin."}
        for slot in range(3):
            pool.step(slot, "bye")
        assert {event.reward for event in pool.wait(120, at_least=3)} == {1.0}


def test_the_checker_proves_it(modules):
    findings = check(
        "verifiers://gagpo_test_corridor_worlds",
        ROUND_TRIP,
        episodes=2,
        only=["construction", "splits are disjoint", "exact task"],
    )
    assert all(finding.ok for finding in findings), findings


def test_a_run_is_trained_in_it(modules, tmp_path):
    """The whole command, in a process of its own, with the corridor as verifiers' environment."""
    from tests.hard.worlds import make_model, write_settings

    model = make_model(tmp_path)
    path = write_settings(
        tmp_path / "run.yaml",
        model,
        environment={"id": "verifiers://gagpo_test_corridor_worlds", "kwargs": {**ROUND_TRIP, "max_turns": 16}},
    )
    found = subprocess.run(
        [sys.executable, "-m", "gagpo", "train", str(path), "--runs", str(tmp_path / "runs"), "--quiet"],
        env={**os.environ, "PYTHONPATH": f"{modules}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    (metrics,) = (tmp_path / "runs").rglob("metrics.jsonl")
    rates = [json.loads(line)["success_rate"] for line in metrics.read_text().splitlines()]
    assert len(rates) == 2 and min(rates) > 0.5  # a model that has learned the corridor here knows it there
