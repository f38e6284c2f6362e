"""The storeroom: provable, the same environment by tools and by lines, and an expert that asks two things at once."""

import pytest

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.envs.check.check import check
from gagpo.envs.pool import WorkerPool
from gagpo.envs.tools import ToolCall, read_call, separate
from gagpo.envs.tools.storeroom import ITEMS, StoreroomEnv
from tests.rejections import rejects

ID = "gagpo/Storeroom-v0"


@pytest.mark.parametrize("form", ["tools", "text"])
def test_it_keeps_every_promise(form):
    findings = check(ID, {"form": form}, episodes=3)
    assert not [finding for finding in findings if not finding.ok]


def test_the_same_seed_is_the_same_env_in_both_forms():
    tools, text = StoreroomEnv(expert=True), StoreroomEnv("text", expert=True)
    for task in tools.tasks("test").ids[::17]:
        observed = []
        for env in (tools, text):
            messages, info = env.reset(seed=5, options={"task": task})
            answers, over = [messages], False
            while not over:
                for action in separate(info["expert_action"]):
                    messages, reward, over, _, info = env.step(action)
                    answers.append(messages)
            observed.append(answers)
            assert reward == 1.0 and info["success"]
        assert observed[0] == observed[1]


def test_the_seed_decides_prices():
    env = StoreroomEnv("text")
    prices = set()
    for seed in range(30):
        env.reset(seed=seed, options={"task": "total-lamp-rope"})
        prices.add(env.step("price lamp")[0])
    assert prices == {f"The lamp costs {number}." for number in range(1, 10)}


def test_train_and_test_share_no_two_things():
    pairs = {
        split: {frozenset(name.split("-")[1:]) for name in StoreroomEnv().tasks(split).ids}
        for split in ("train", "test")
    }
    assert not pairs["train"] & pairs["test"] and len(pairs["train"] | pairs["test"]) == len(ITEMS) * 15 // 2


@pytest.mark.parametrize(
    ("form", "action", "told"),
    [
        ("tools", ToolCall("price", {"item": "unicorn"}).text, "there is no 'unicorn' in the storeroom"),
        ("tools", "price lamp", "the call is no JSON"),
        ("tools", ToolCall("add", {"a": "1", "b": 2}).text, "argument 'a' of add"),
        ("text", "add 1", "say add a b"),
        ("text", "add one 2", "argument 'a' of add"),
        ("text", "", "there is no tool ''"),
        ("text", "answer" + " lamp" * 50_000, "say answer text"),
    ],
)
def test_an_impossible_call_is_invalid_and_explained(form, action, told):
    env = StoreroomEnv(form)
    env.reset(seed=1, options={"task": "total-lamp-rope"})
    messages, reward, over, _, info = env.step(action)
    assert told in messages and len(messages) < 400 and (reward, over, info["valid"]) == (0.0, False, False)


def test_an_unknown_form_is_refused():
    with rejects(InvalidArgument, key="form"):
        StoreroomEnv("lines")


def test_an_experts_calls_at_once_are_one_turn_and_are_answered_each():
    with WorkerPool(ID, {"expert": True}, workers=0) as pool:
        episodes, _ = rollout(ExpertAgent(), pool, group_jobs(["total-lamp-rope", "dearer-vase-drum"], 1, 1))
    for episode in episodes:
        first, *remaining = episode.turns
        assert [read_call(call.action).name for call in first.calls] == ["price", "price"]
        assert [call.answer for call in first.calls] == remaining[0].observation.split("\n")
        assert episode.success and len(episode.turns) == (3 if episode.task.startswith("total") else 2)
