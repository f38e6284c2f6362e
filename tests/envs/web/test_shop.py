"""The shop as a site: the same goals, pages and rewards as the text environment."""

from __future__ import annotations

import random

import pytest

from gagpo.envs.web.env import WebEnv
from gagpo.envs.webshop.env import WebShopEnv
from tests.envs.web.conftest import needs_browser
from tests.envs.webshop.shelf import build, options, row, shared_root, write_files

pytestmark = needs_browser


@pytest.fixture(scope="module")
def pair():
    """The site and the text environment, with the same catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(shared_root()))
        patch.delenv("WEBSHOP_DATA", raising=False)
        site, text = (
            WebEnv(source="webshop", max_turns=60, limit=20_000, expert=True),
            WebShopEnv(max_turns=60, expert=True),
        )
    yield site, text
    site.close()


def find(page, label):
    expected = " ".join(label.split())
    return next(line.number for line in page.find() if line.name.lower() == expected)


def follow(site, action):
    """Carry out an action of the text environment on the site."""
    if action.startswith("click["):
        return site.step(f"click[{find(site.browser.page, action[6:-1])}]")
    if not list(site.browser.page.find("input")):
        site.step(f"click[{find(site.browser.page, 'back to search')}]")
    field = next(site.browser.page.find("input"))
    site.step(f"type[{field.number}] {action[7:-1]}")
    return site.step("press[Enter]")


def same_purchase(site, text, task, rng):
    """Wander through both shops and buy; the rewards must be equal. Returns the reward."""
    _, info = text.reset(options={"task": task})
    observation, _ = site.reset(options={"task": task})
    assert observation.split("\n")[0] == text.shop.goal(task).instruction
    while True:
        action = info["expert_action"]
        if rng.random() < 0.3:
            action = rng.choice(info["admissible_actions"])
        _, reward, terminated, truncated, info = text.step(action)
        _, web_reward, web_terminated, _, web_info = follow(site, action)
        assert (reward, terminated, info["success"]) == (web_reward, web_terminated, web_info["success"]), action
        if terminated or truncated:
            return reward


def compare(pair, episodes):
    site, text = pair
    rng = random.Random(5)
    tasks = [task.id for task in text.tasks("train")]
    return [same_purchase(site, text, task, rng) for task in rng.sample(tasks, episodes)]


def test_the_same_purchase_earns_the_same_reward(pair):
    assert len(set(compare(pair, 4))) >= 1


@pytest.mark.slow
def test_the_same_purchase_earns_the_same_reward_in_200_episodes(pair):
    rewards = compare(pair, 200)
    assert len(rewards) == 200
    assert len(set(rewards)) > 3


def test_the_tasks_are_those_of_the_text_environment_and_its_expert_wins(pair):
    site, text = pair
    for split in ("train", "validation", "test"):
        assert site.tasks(split).hash == text.tasks(split).hash
    _, info = site.reset(seed=1)
    while info["expert_action"] is not None:
        _, reward, terminated, _, info = site.step(info["expert_action"])
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_page_that_was_not_linked_does_not_exist(pair):
    site, _ = pair
    site.reset(seed=1)
    site.browser.evaluate("location.href = '/done/000000000000', 1")
    assert site.browser.read().text("full", 1000) == "This page does not exist."
    assert site.step("back")[2] is False


def test_hostile_texts_are_shown_and_run_nothing(tmp_path, monkeypatch):
    name = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">\' & "'
    rows = [row("B1", f"hostile {name}", customization_options=options(size=["S", name[:60]]))]
    data = write_files(tmp_path, rows)
    assert build(tmp_path, rows)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "built"))
    env = WebEnv(source="webshop", data=str(data), split="train")
    try:
        task = next(task for split in env.splits for task in env.tasks(split).ids)
        env.reset(options={"task": task})
        for action in ("type[1] hostile", "press[Enter]"):
            env.step(action)
        observation, *_ = env.step(f"click[{find(env.browser.page, 'b1')}]")
        assert "<script>window.hacked = 1</script>" in observation
        assert env.browser.evaluate("window.hacked === undefined && document.images.length === 0")
    finally:
        env.close()
