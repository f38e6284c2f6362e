"""The environment around a source: observations, invalid actions, tools, ends, and untrusted actions."""

from __future__ import annotations

import base64
import itertools
import json
import random
from typing import ClassVar

import gymnasium
import psutil
import pytest

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.data import write_episodes
from gagpo.envs.check.promises import GARBAGE
from gagpo.envs.pool import WorkerPool
from gagpo.envs.tasks import Task
from gagpo.envs.web.actions import Command, parse, parse_call
from gagpo.envs.web.env import WebEnv
from gagpo.envs.web.server import PageResponse
from gagpo.envs.web.source import SOURCES, Standing
from gagpo.eval.episode_files import read_episode_file
from tests.envs.web.conftest import needs_browser
from tests.rejections import rejects

pytestmark = needs_browser
PAGE = b"""<!doctype html><input name=q>
<button onclick="q.textContent = document.querySelector('input').value">Go</button>
<p id=q></p><button onclick="for (;;) ;">Hang</button><a href=/next>next</a>"""


class WordSource:
    """Type a word and press a button."""

    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    def __init__(self, words: tuple[str, ...] = ("red", "blue")):
        self.words = words

    def tasks(self, split):
        return [Task(f"{split}-{word}", split, digest=f"{split} {word}", source=word) for word in self.words]

    def open(self, browser, task):
        self.word = task.source
        browser.open("/", lambda request: PageResponse(PAGE))
        return f'Type "{self.word}" and press Go.'

    def outcome(self, browser):
        written = browser.evaluate("document.getElementById('q')?.textContent ?? ''")
        return Standing(float(written == self.word), over=bool(written), success=written == self.word)

    def expert(self, browser):
        if not browser.page.line(1) or browser.page.line(1).value != self.word:
            return Command("type", 1, self.word)
        return Command("click", 2)


class HiddenCounter(WordSource):
    """The third click succeeds; nothing that can be seen counts them."""

    def open(self, browser, task):
        script = b"let n = 0; const count = () => { if (++n === 3) window.done = true; }"
        page = b"<!doctype html><script>%s</script><button onclick='count()'>a</button>" % script
        browser.open("/", lambda request: PageResponse(page))
        return "Click three times."

    def outcome(self, browser):
        done = browser.evaluate("window.done === true")
        return Standing(float(done), over=done, success=done)


def futures(env, limit=4):
    """What another click earns, by state key, after every path of clicks and invalid actions."""
    results = {}
    for path in itertools.chain.from_iterable(itertools.product(("click[1]", "x"), repeat=n) for n in range(1, limit)):
        env.reset(options={"task": "train-red"})
        steps = [env.step(action) for action in path]
        if not any(step[2] for step in steps):
            results.setdefault(steps[-1][4]["state"], set()).add(env.step("click[1]")[1])
    return results


def test_equal_keys_mean_equal_futures_with_the_state_history():
    """A page that hides its state: the page's key is the same before the last click and before the one before it."""
    source = f"{__name__}:HiddenCounter"
    page, history = WebEnv(source=source), WebEnv(source=source, state="history")
    try:
        assert max(map(len, futures(page).values())) == 2
        exact = futures(history)
        assert max(map(len, exact.values())) == 1
        _, info = history.reset(options={"task": "train-red"})
        assert info["state"] == history.reset(options={"task": "train-red"})[1]["state"]
        assert history.step("click[1]")[4]["state"] in exact
    finally:
        page.close()
        history.close()


@pytest.fixture(scope="module")
def env():
    env = WebEnv(source=f"{__name__}:WordSource", expert=True, timeout=20.0)
    yield env
    env.close()


def test_the_expert_of_a_source_from_outside_wins(env):
    observation, info = env.reset(options={"task": "test-blue"})
    assert (
        observation
        == 'Type "blue" and press Go.\n\n[1] input "q" = ""\n[2] button "Go"\n[3] button "Hang"\n[4] link "next"'
    )
    assert info["expert_action"] == "type[1] blue"
    assert "type[1] blue" in info["admissible_actions"]
    observation, *_, info = env.step(info["expert_action"])
    assert '[1] input "q" = "blue" (focused)' in observation
    observation, reward, terminated, _, info = env.step(info["expert_action"])
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert observation.endswith("The episode is over.")


def test_an_invalid_action_says_why_in_the_observation(env):
    before, _ = env.reset(options={"task": "train-red"})
    for action, reason in (
        ("click[9]", "Invalid action: [9] is not on this page."),
        ("press[Entr]", "Invalid action: there is no key 'Entr'; nearest: Enter"),
        ("buy it", "Invalid action: 'buy it' is not an action; write click[N]"),
        ("type[2] x", "Invalid action: [2] is not a field to type into."),
    ):
        observation, reward, terminated, _, info = env.step(action)
        assert observation.split("\n")[1].startswith(reason)
        assert (reward, terminated, info["valid"]) == (0.0, False, False)
        assert observation.endswith(before.partition("\n\n")[2])


def test_the_actions_are_tools_too(env):
    tools = WebEnv(source=f"{__name__}:WordSource", expert=True, form="tools")
    try:
        assert [tool.name for tool in tools.tools] == ["click", "type", "select", "press", "scroll", "back"]
        _, info = tools.reset(options={"task": "train-red"})
        assert json.loads(info["expert_action"]) == {"name": "type", "arguments": {"element": 1, "text": "red"}}
        for action, valid in (
            ('{"name": "click", "arguments": {"element": 99}}', False),
            ('{"name": "click", "arguments": {"element": "1"}}', False),
            ("click[1]", False),
            (info["expert_action"], True),
            ('{"name": "click", "arguments": {"element": 2}}', True),
        ):
            *_, terminated, _, info = tools.step(action)
            assert info["valid"] == valid, action
        assert terminated and info["success"]
    finally:
        tools.close()


@pytest.mark.slow
def test_a_page_that_hangs_ends_its_episode_alone():
    env = WebEnv(source=f"{__name__}:WordSource", expert=True, timeout=1.0)
    try:
        env.reset(options={"task": "train-red"})
        observation, reward, terminated, truncated, info = env.step("click[3]")
        assert "did not answer in 1 s" in observation
        assert (reward, terminated, truncated, info["success"], info["hung"]) == (0.0, False, True, False, True)
        _, info = env.reset(options={"task": "train-red"})
        *_, info = env.step(info["expert_action"])
        assert env.step(info["expert_action"])[2]
    finally:
        env.close()


def test_a_screenshot_comes_with_every_turn_and_is_small():
    env = WebEnv(source=f"{__name__}:WordSource", screenshots=True)
    try:
        _, info = env.reset(options={"task": "train-red"})
        *_, later = env.step("type[1] red")
        pictures = [base64.b64decode(entry["screenshot"], validate=True) for entry in (info, later)]
        assert pictures[0] != pictures[1]
        for picture in pictures:
            assert picture.startswith(b"\x89PNG")
            assert 100 < len(picture) < 20_000
    finally:
        env.close()


def test_a_screenshot_is_a_part_of_its_turn_in_the_file_of_episodes(tmp_path):
    kwargs = {"source": f"{__name__}:WordSource", "screenshots": True, "expert": True}
    with WorkerPool("gagpo/Web-v0", kwargs, workers=0) as pool:
        (episode,), _ = rollout(ExpertAgent(), pool, group_jobs(["train-red"], 1, seed=0))
    pictures = [turn.screenshot for turn in episode.turns]
    assert len(pictures) == len(set(pictures)) == 2
    assert "screenshot" not in episode.info  # it would be there twice
    write_episodes(tmp_path / "test.jsonl", [episode])
    (record,), problems = read_episode_file(tmp_path / "test.jsonl")
    assert not problems
    assert [turn.screenshot for turn in record.turns] == pictures


def hostile_actions(rng, number):
    """Actions of every form with numbers, words and keys that may or may not fit."""
    tokens = [*GARBAGE.values(), "<script>alert(1)</script>", "'); document.body.remove(); ('", "\\", "red", ""]
    keys = ["Enter", "Tab", "Escape", "a", "F5", "Control", "\x00", "Backspace"]
    for _ in range(number):
        n = rng.choice([0, 1, 2, 4, 4, 5, 99, 10**6, -1])
        word = rng.choice(tokens)[:3000]
        yield rng.choice(
            [
                *(f"click[{n}]", f"select[{n}]", f"type[{n}] {word}", f"press[{rng.choice(keys)}]", word),
                *("back", "scroll[down]", "scroll[up]", f"type[{n}]", f"click[{word[:20]}]", "goto file:///etc/passwd"),
            ]
        )


def play_hostile(env, number, seed=0):
    """Plays ``number`` actions, not counting the hanging button; returns how many were valid."""
    rng, valid, over = random.Random(seed), 0, True
    for action in hostile_actions(rng, number):
        if over:
            env.reset(options={"task": rng.choice(["train-red", "train-blue"])})
        observation, reward, terminated, truncated, info = env.step(action)
        observation.encode()
        assert reward in (0.0, 1.0)
        assert "root:" not in observation
        valid += info["valid"]
        over = terminated or truncated
    return valid


def test_hostile_actions_are_answered(env):
    assert 5 < play_hostile(env, 150) < 140


def test_more_episodes_than_browsers_take_turns_and_see_the_same(env, monkeypatch):
    """Three episodes at once with one browser, against one after another."""
    actions = ["type[1] red", "click[9]", "scroll[down]", "press[Tab]", "click[2]"]
    expected = [env.reset(options={"task": "train-red"})[0], *(env.step(action) for action in actions)]
    env.browser.close()
    monkeypatch.setattr("gagpo.envs.web.browser.MOST_BROWSERS", 1)
    remaining = [WebEnv(source=f"{__name__}:WordSource", expert=True) for _ in range(3)]
    try:
        starts = [other.reset(options={"task": "train-red"})[0] for other in remaining]
        assert sum(other.browser._started is not None for other in remaining) == 1
        steps = [[other.step(action) for other in remaining] for action in actions]
        for number in range(3):
            assert [starts[number], *(results[number] for results in steps)] == expected
    finally:
        for other in remaining:
            other.close()


@pytest.mark.slow
def test_killed_browsers_cost_their_own_episodes_only():
    """Browsers are killed at random instants; every episode of the pool ends with the expert's success."""
    rng = random.Random(3)
    with WorkerPool("gagpo/Web-v0", {"tasks": ["enter-text"], "unseen": [], "expert": True}, workers=1) as pool:
        for seed in range(6):
            pool.reset(0, f"enter-text.{seed:06d}", seed=0)
            killed, over = False, False
            while not over:
                (event,) = pool.wait()
                assert event.kind in ("reset", "step", "restarted")
                over = event.terminated
                if over:
                    assert event.info["success"]
                    break
                if not killed and (event.info["turn"] == 1 or rng.random() < 0.5):
                    killed = True
                    for process in psutil.Process().children(recursive=True):
                        if process.name().startswith("chrom") and "chromedriver" not in process.name():
                            process.kill()
                pool.step(0, event.info["expert_action"])
        assert pool.counters.restarts > 0
        assert pool.counters.failures == 0


@pytest.mark.slow
def test_many_hostile_actions_are_answered(env):
    assert play_hostile(env, 3_000, seed=1) > 100


@pytest.mark.parametrize(
    ("action", "command"),
    [
        (" click[3]\n", Command("click", 3)),
        ("type[4] two  words", Command("type", 4, "two  words")),
        ("type[4]", Command("type", 4, "")),
        ("type[4] a\x00b\x1b\ud800", Command("type", 4, "ab")),
        ("press[enter]", Command("press", text="Enter")),
        ("press[x]", Command("press", text="x")),
        ('type[4] ["quoted"]', Command("type", 4, '["quoted"]')),
    ],
)
def test_actions_are_read(action, command):
    assert parse(action) == command


@pytest.mark.parametrize("name", ["click", "type", "select", "press", "scroll", "back"])
def test_a_command_is_the_same_as_text_and_as_a_call(name):
    text = {"type": "red", "press": "Enter", "scroll": "down"}.get(name, "")
    command = Command(name, 3 if name in ("click", "type", "select") else 0, text)
    call = json.dumps({"name": command.name, "arguments": command.call})
    assert parse(str(command)) == parse_call(call) == command


@pytest.mark.parametrize(
    ("options", "key", "names"),
    [
        ({"source": "miniwo"}, None, ("'miniwo'", "nearest: miniwob")),
        ({"source": "json:loads"}, None, ("WebSource",)),
        ({"source": f"{__name__}:PAGE"}, None, ("WebSource",)),
        ({"source": f"{__name__}:WordSource", "word": 1}, None, ("'word'", "nearest: words")),
        ({"source": 3}, "source", ()),
        ({"observation": "all"}, None, ("observation 'all'", "full or interactive")),
        ({"form": "json"}, None, ("form 'json'", "text, names, tools")),
        ({"state": "all"}, None, ("state 'all'", "page or history")),
        ({"limit": 10}, "limit", ("200",)),
        ({"timeout": 0}, "timeout", ("1", "600")),
        ({"grid": "host:4444"}, "grid", ("http://HOST:4444",)),
    ],
)
def test_wrong_arguments_are_errors(options, key, names):
    with rejects(InvalidArgument, *names, key=key):
        WebEnv(**{"source": f"{__name__}:WordSource", **options})


def test_an_address_that_is_not_of_this_machine_is_an_error():
    env = WebEnv(source=f"{__name__}:WordSource", host="203.0.113.7")
    with rejects(InvalidArgument, "host", "this machine"):
        env.reset()
    env.close()


def test_it_is_registered_and_its_sources_are_known():
    assert gymnasium.spec("gagpo/Web-v0").entry_point == "gagpo.envs.web.env:WebEnv"
    assert set(SOURCES.builtin) == {"miniwob", "folder", "webshop"}
