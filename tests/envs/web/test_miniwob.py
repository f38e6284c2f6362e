"""The tasks of MiniWoB++: exact pages, rewards without a clock, and experts that win."""

from __future__ import annotations

import importlib.util
import random
import shutil
from contextlib import closing

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.env import WebEnv
from gagpo.envs.web.errors import BrowserMissing
from gagpo.envs.web.miniwob.experts import EXPERTS
from gagpo.envs.web.miniwob.source import REPEATED, UNSEEN_KINDS, MiniWoB
from tests.envs.web.conftest import needs_browser
from tests.rejections import rejects

pytestmark = [
    *needs_browser,
    pytest.mark.skipif(
        importlib.util.find_spec("miniwob") is None, reason="needs miniwob: pip install -c constraints.txt -e '.[web]'"
    ),
]
FAST = ("click-checkboxes", "click-tab-2", "email-inbox-reply", "enter-date", "social-media", "use-autocomplete")


@pytest.fixture(scope="module")
def env():
    env = WebEnv(level="all", expert=True, max_turns=40, unseen=[])
    yield env
    env.close()


def play(env, task):
    """The expert's episode: all observations, the last reward and the last info."""
    observation, info = env.reset(options={"task": task})
    texts, over, reward = [observation], False, 0.0
    while not over:
        assert info["expert_action"] is not None, f"at a loss:\n{observation}"
        observation, reward, terminated, truncated, info = env.step(info["expert_action"])
        assert info["valid"], observation
        texts.append(observation)
        over = terminated or truncated
    return texts, reward, info


@pytest.mark.parametrize("kind", FAST)
def test_experts_win(env, kind):
    texts, reward, info = play(env, f"{kind}.000000")
    assert (reward, info["success"]) == (1.0, True), "\n".join(texts)
    assert "The episode is over." in texts[-1]


AMBIGUOUS = ("email-inbox-forward", "email-inbox-noscroll")
"""Kinds in which two messages may have the sender that is meant, so that no agent can tell which one is."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(EXPERTS))
def test_every_expert_wins_on_five_seeds(env, kind):
    lost = []
    for seed in range(5):
        texts, reward, info = play(env, f"{kind}.{seed:06d}")
        if (reward, info["success"]) != (1.0, True):
            lost.append("\n".join(texts))
    assert len(lost) <= (kind in AMBIGUOUS), lost[0]


def test_there_are_experts_for_many_kinds_and_each_is_a_task():
    source = MiniWoB()
    assert len(EXPERTS) >= 50
    assert set(EXPERTS) <= set(source.kinds)
    assert len(source.kinds) > 100
    assert set(UNSEEN_KINDS) <= set(EXPERTS)
    assert not set(source.trained) & set(source.unseen)


def test_the_same_seed_is_the_same_page_after_others_and_in_another_browser(env):
    first, _ = env.reset(options={"task": "social-media.000003"})
    state = env.browser.page.key
    other, _ = env.reset(options={"task": "social-media.000004"})
    again, _ = env.reset(options={"task": "social-media.000003"})
    assert first == again != other
    assert env.browser.page.key == state
    second = WebEnv(level="all", unseen=[])
    try:
        assert second.reset(options={"task": "social-media.000003"})[0] == first
    finally:
        second.close()


@pytest.mark.slow
def test_a_seed_is_the_task_that_it_is_in_the_package(env, monkeypatch):
    gymnasium = pytest.importorskip("gymnasium")
    miniwob = pytest.importorskip("miniwob")
    monkeypatch.setenv("MINIWOB_CHROME_BINARY", shutil.which("chromium"))
    monkeypatch.setenv("MINIWOB_CHROMEDRIVER", shutil.which("chromedriver"))
    gymnasium.register_envs(miniwob)
    for type_name in ("click-tab-2", "email-inbox-delete", "enter-text"):
        package = gymnasium.make(f"miniwob/{type_name}-v1", disable_env_checker=True).unwrapped
        try:
            for seed in (0, 7, 100_000):
                observation, _ = package.reset(seed=seed, options={"record_screenshots": False})
                env.reset(options={"task": f"{type_name}.{seed:06d}"})
                assert env.instruction == observation["utterance"]
        finally:
            package.close()


def _episodes(env, kind):
    """What is seen in three episodes: the expert's, one that uses whatever there is, and the expert's again."""
    rows = []
    for seed in (3, 4, 5):
        observation, info = env.reset(options={"task": f"{kind}.{seed:06d}"})
        rng = random.Random(seed)
        over = False
        while not over:
            rows.append((observation, info["state"], info["admissible_actions"]))
            action = info["expert_action"]
            if action is None or seed == 4:
                action = rng.choice([*info["admissible_actions"], "press[Tab]", "press[a]", "scroll[down]"])
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        rows.append((observation, info["state"], reward))
    return rows


def _compare_with_loaded_pages(monkeypatch, kinds):
    with closing(WebEnv(level="all", expert=True, max_turns=8, unseen=[])) as env:
        observed = {type_name: _episodes(env, type_name) for type_name in kinds}
    monkeypatch.setattr(Browser, "_repeat", lambda *values: None)
    with closing(WebEnv(level="all", expert=True, max_turns=8, unseen=[])) as fresh:
        for type_name in kinds:
            assert _episodes(fresh, type_name) == observed[type_name], type_name


def test_a_page_that_is_used_again_is_as_if_it_was_loaded(monkeypatch):
    loaded = []
    real = Browser._navigate
    monkeypatch.setattr(Browser, "_navigate", lambda *values: loaded.append(1) or real(*values))
    type_names = ["click-button", "enter-date", "enter-text", "login-user"]
    _compare_with_loaded_pages(monkeypatch, type_names)
    assert len(loaded) == len(type_names) + 3 * len(type_names)  # one each, and then one for each episode


@pytest.mark.slow
def test_every_page_that_is_used_again_is_as_if_it_was_loaded(monkeypatch):
    _compare_with_loaded_pages(monkeypatch, sorted(REPEATED))


LEFT = {
    "a variable": "window.extra = 1",
    "a variable of a script": "WOB_TASK_READY = 5",
    "a property": "core.extra = [{a: 1}]",
    "an element": "document.body.append(document.createElement('p'))",
    "an attribute": "document.getElementById('wrap').title = 'x'",
    "a property of an element": "document.getElementById('area').extra = 1",
    "a listener": "document.addEventListener('click', () => {})",
    "a handler": "document.getElementById('wrap').onclick = () => 1",
    "a listener of the window": "window.addEventListener('keydown', () => {})",
    "a replaced function": "window.alert = () => 2",
    "a changed library": "d3.extra = () => 3",
    "an observer": "new MutationObserver(() => {}).observe(document.body, {childList: true})",
    "a style": "document.styleSheets[0].insertRule('p {color: red}')",
    "something stored": "localStorage.x = 1",
    "a database": "indexedDB.open('x')",
    "a title": "document.title = 'x'",
}


@pytest.mark.parametrize("script", LEFT.values(), ids=LEFT.keys())
def test_a_page_in_which_something_was_left_is_loaded_again(env, monkeypatch, script):
    env.reset(options={"task": "enter-text.000001"})
    env.reset(options={"task": "enter-text.000002"})
    loaded = []
    real = Browser._navigate
    monkeypatch.setattr(Browser, "_navigate", lambda *values: loaded.append(1) or real(*values))
    first, info = env.reset(options={"task": "enter-text.000001"})
    assert not loaded
    env.browser.evaluate("setTimeout(() => { document.title = 'later' }, 3000)")  # ends with the episode
    env.reset(options={"task": "enter-text.000002"})
    assert not loaded
    env.browser.evaluate(f"(() => {{ {script} }})()")
    again, same = env.reset(options={"task": "enter-text.000001"})
    assert loaded and (again, same["state"]) == (first, info["state"])


def test_the_reward_does_not_depend_on_time_and_the_limit_is_lifted(env):
    env.reset(options={"task": "click-button.000000"})
    for _ in range(30):  # half a minute on the page's clock; its own limit is ten seconds
        _, _, terminated, _, info = env.step("press[Tab]")
        assert not terminated
    _, reward, terminated, _, info = env.step(info["expert_action"])
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_wrong_click_loses_and_ends_the_episode(env):
    observation, _ = env.reset(options={"task": "click-test-2.000000"})
    wrong = 'button "TWO"'
    number = next(line for line in observation.split("\n") if wrong in line).split("]")[0]
    _, reward, terminated, _, info = env.step(f"click{number}]")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)


def test_what_only_the_page_remembers_is_part_of_the_state(env):
    """A click that changes nothing visible, before a sequence of two."""
    states = set()
    for actions in ((), ("click[1]",), ("click[2]",)):
        _, info = env.reset(options={"task": "click-button-sequence.000000"})
        for action in actions:
            *_, info = env.step(action)
        states.add(info["state"])
    assert len(states) == 3


def test_splits_hold_unseen_seeds_and_unseen_kinds():
    source = MiniWoB(tasks=["click-tab-2", "enter-text"], seeds={"train": "0-9", "test": "10-14"})
    train, test, type_names = ({task.id: task for task in source.tasks(split)} for split in source.splits)
    assert (len(train), len(test)) == (20, 10)
    assert {task.type for task in train.values()} == {task.type for task in test.values()} == set(source.trained)
    assert {task.type for task in type_names.values()} == set(UNSEEN_KINDS)
    digests = [task.digest for tasks in (train, test, type_names) for task in tasks.values()]
    assert len(set(digests)) == len(digests)
    assert "enter-text-2" not in MiniWoB(tasks=["enter-text-2"]).unseen


@pytest.mark.parametrize(
    ("options", "key", "names"),
    [
        ({"tasks": ["click-tabs"]}, "tasks", ("'click-tabs'", "nearest: click-tab")),
        ({"tasks": "click-tab"}, "tasks", ()),
        ({"tasks": []}, "tasks", ()),
        ({"tasks": ["../core/core"]}, "tasks", ("MiniWoB",)),
        ({"tasks": ["click-tab"], "unseen": ["click-tab"]}, "tasks", ("click-tab", "unseen")),
        ({"level": "hard"}, None, ("'hard'", "easy or all")),
        ({"seeds": {"train": "0-9", "test": "5-14"}}, "tasks.test", ("share seeds",)),
        ({"seeds": {"train": "0-9"}}, "seeds", ("train and test",)),
        ({"seeds": {"train": "9-0", "test": "5-14"}}, "tasks.train", ()),
    ],
)
def test_wrong_options_are_errors(options, key, names):
    with rejects(InvalidArgument, *names, key=key):
        MiniWoB(**options)


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("gagpo.envs.web.miniwob.source.importlib.util.find_spec", lambda name: None)
    with rejects(BrowserMissing, advice="pip install -c constraints.txt -e '.[web]'"):
        MiniWoB()


def test_the_turn_limit_costs_what_the_pages_own_time_limit_does() -> None:
    env = WebEnv(tasks=["click-button"], unseen=[], max_turns=2)
    try:
        env.reset(seed=0)
        assert env.step("press[Tab]")[1:4] == (0.0, False, False)
        assert env.step("press[Tab]")[1:4] == (-1.0, False, True)
    finally:
        env.close()
