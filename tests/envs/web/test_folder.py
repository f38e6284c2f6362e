"""A site that is a folder of files, with its tasks in a YAML file."""

from __future__ import annotations

import json

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.web.env import WebEnv
from gagpo.envs.web.folder import Folder
from tests.envs.web.conftest import needs_browser
from tests.rejections import rejects

pytestmark = needs_browser
TASKS = """
tasks:
  - id: tea
    instruction: Put the tea into the basket.
    success: {selector: "#basket li.tea", text: "1 thing"}
    failure: {text: coffee in the basket}
    expert: ["click[1]"]
  - id: help
    split: test
    start: more/help.html?topic=tea
    instruction: Go to the page of contacts.
    success: {url: "contact.html?from=help"}
    expert: ["click[1]"]
"""
INDEX = """<!doctype html><button onclick="add('tea')">Tea</button><button onclick="add('coffee')">Coffee</button>
<ul id=basket></ul><p id=count></p><script src=shop.js></script>"""
SCRIPT = """function add(name) {
  basket.innerHTML += `<li class=${name}>${name}</li>`;
  count.textContent = `${basket.children.length} thing` + (name === 'coffee' ? ', coffee in the basket' : '');
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "more").mkdir()
    (folder / "tasks.yaml").write_text(TASKS)
    (folder / "index.html").write_text(INDEX)
    (folder / "shop.js").write_text(SCRIPT)
    (folder / "more" / "help.html").write_text('<a href="/contact.html?from=help">c</a><a href="/tasks.yaml">t</a>')
    (folder / "contact.html").write_text("<p>Contacts</p>")
    return folder


@pytest.fixture(scope="module")
def env(site):
    env = WebEnv(source="folder", folder=str(site), expert=True)
    yield env
    env.close()


@pytest.mark.parametrize("task", ["tea", "help"])
def test_the_written_expert_solves_the_task(env, task):
    _, info = env.reset(options={"task": task})
    env.step("press[Tab]")  # an action of its own does not confuse the expert
    assert info["expert_action"] == "click[1]"
    _, reward, terminated, _, info = env.step("click[1]")
    assert (reward, terminated, info["success"], info["expert_action"]) == (1.0, True, True, None)


def test_a_failure_ends_the_episode_without_a_reward(env):
    env.reset(options={"task": "tea"})
    _, reward, terminated, _, info = env.step("click[2]")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_the_answers_are_not_served(env):
    env.reset(options={"task": "help"})
    observation, *_ = env.step("click[2]")
    assert "This page does not exist." in observation
    assert "expert" not in observation


def test_a_changed_page_changes_the_tasks(site, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tasks.yaml", "index.html", "shop.js", "contact.html"):
        (other / name).write_text((site / name).read_text())
    (other / "more").mkdir()
    (other / "more" / "help.html").write_text((site / "more" / "help.html").read_text())
    digest = {task.id: task.digest for task in Folder(str(site)).tasks("train")}
    assert {task.id: task.digest for task in Folder(str(other)).tasks("train")} == digest
    (other / "shop.js").write_text("// other")
    assert {task.id: task.digest for task in Folder(str(other)).tasks("train")} != digest


def test_a_wrong_selector_is_an_error_and_not_a_lost_episode(site, tmp_path):
    (tmp_path / "index.html").write_text("hello")
    (tmp_path / "tasks.yaml").write_text("tasks: [{id: a, instruction: b, success: {selector: '<<'}}]")
    env = WebEnv(source="folder", folder=str(tmp_path))
    try:
        with rejects(InvalidArgument, "'<<'", key="selector"):
            env.reset()
    finally:
        env.close()


@pytest.mark.parametrize(
    ("text", "key", "names"),
    [
        ("tasks: []", "tasks", ()),
        ("tasks: 3", "tasks", ()),
        ("- a", None, ("keys", "tasks")),
        ("tasks: [3]", None, ("task 1",)),
        ("tasks: [{id: a, success: {text: x}}]", "instruction", ("task a", "missing")),
        ("tasks: [{id: a, instruction: b, success: {}}]", "success", ("task a", "selector")),
        ("tasks: [{id: a, instruction: b, success: {txt: x}}]", "success.txt", ("task a",)),
        ("tasks: [{id: a, instruction: b, sucess: {text: x}}]", None, ("task a", "'sucess'", "nearest: success")),
        ("tasks: [{id: a, instruction: b, success: {text: x}, expert: [clik]}]", None, ("task a", "'clik'")),
        ("tasks: [{id: a, instruction: b, success: {text: x}, start: no.html}]", "start", ("no.html",)),
        ("tasks: [{id: a, instruction: b, success: {text: x}, start: ../x.html}]", "start", ()),
        ("tasks: [{id: a, instruction: b, split: dev, success: {text: x}}]", "split", ("train", "test")),
        (f"tasks: [{', '.join(['{id: a, instruction: b, success: {text: x}}'] * 2)}]", None, ("another task",)),
    ],
)
def test_a_wrong_file_is_an_error_with_its_place(tmp_path, text, key, names):
    (tmp_path / "index.html").write_text("hello")
    (tmp_path.parent / "x.html").write_text("outside")
    (tmp_path / "tasks.yaml").write_text(text)
    with rejects(InvalidArgument, *names, key=key):
        Folder(str(tmp_path))


ECHO = """<input id=q><button onclick="out.innerHTML = `You wrote ${q.value}`">Go</button><div id=out></div>
<button onclick="done.textContent += 'Order 7 placed'; done.className = 'ok'">Order</button><p id=done></p>"""
EDITOR = "<div id=e contenteditable>note</div><button onclick=\"e.after('Saved: all')\">Save</button>"
NAMES = """<input id=a><input id=b>
<button onclick="out.textContent = `Hello ${a.value} ${b.value}`">Go</button>
<p id=out></p>"""
INJECTED = "<input id=q><button onclick=\"out.innerHTML = `<b title='${q.value}'>x</b>`\">Go</button><p id=out></p>"
CASES = {
    "an echo": (ECHO, {"text": "Order 7 placed"}, ["type[1] Order 7 placed", "click[2]"], False),
    "an echo in other letters": (ECHO, {"text": "Order 7 placed!"}, ["type[1] order  7 PLACED", "click[2]"], False),
    "an echo with markup in it": (
        ECHO,
        {"text": "Order 7 placed"},
        ["type[1] Or<b>der 7 pl</b>aced", "click[2]"],
        False,
    ),
    "an echo of hidden markup": (
        ECHO,
        {"text": "Order 7 placed"},
        ["type[1] Ord<i title='>' hidden>x</i>er 7 pla&#99;ed", "click[2]"],
        False,
    ),
    "echoed elements": (ECHO, {"selector": ".ok"}, ["type[1] <p class=ok>x</p>", "click[2]"], False),
    "echoed elements inside": (ECHO, {"selector": "#out .ok i"}, ["type[1] <p class=ok><i>x", "click[2]"], False),
    "echoed elements with their text": (
        ECHO,
        {"selector": ".ok", "text": "7 placed"},
        ["type[1] <p class='ok'>7 placed</p>", "click[2]"],
        False,
    ),
    "an echoed attribute": (INJECTED, {"selector": ".ok"}, ["type[1] ' class='ok", "click[2]"], False),
    "an echoed tag": (ECHO, {"selector": "#out b"}, ["type[1] <b>x", "click[2]"], False),
    "an editor": (EDITOR, {"text": "all done"}, ["type[1] all done"], False),
    "an editor, letter by letter": (EDITOR, {"text": "oh"}, ["click[1]", "press[o]", "press[h]"], False),
    "what stood in an editor": (EDITOR, {"text": "note"}, ["press[Tab]"], False),
    "lines of an editor": (EDITOR, {"selector": "#e div"}, ["click[1]", "press[Enter]"], False),
    "two fields": (NAMES, {"text": "my order"}, ["type[1] my", "type[2] order", "click[3]"], False),
    "the page's own text": (ECHO, {"text": "Order 7 placed"}, ["type[1] 7", "click[3]"], True),
    "the page's own element": (ECHO, {"selector": ".ok"}, ["type[1] ok", "click[2]", "click[3]"], True),
    "an element after typed markup": (ECHO, {"selector": ".ok"}, ["type[1] <i>", "click[2]", "click[3]"], True),
    "text beside an editor": (EDITOR, {"text": "Saved: all"}, ["type[1] yes", "click[2]"], True),
    "an echo where it should be": (ECHO, {"selector": "#out", "text": "Ann"}, ["type[1] Ann", "click[2]"], True),
    "an editor that is named": (EDITOR, {"selector": "#e", "text": "Ann"}, ["type[1] Ann"], True),
    "capital letters of the style": (
        "<button onclick='t.hidden = false'>a</button><p id=t hidden style='text-transform:uppercase'>done</p>",
        {"text": "DONE"},
        ["click[1]"],
        True,
    ),
    "text that nobody can see": (ECHO + "<p style='font-size:0'>secret</p>", {"text": "secret"}, ["press[Tab]"], False),
    "an address with a fragment": ("<a href='#top'>a</a>", {"url": "index.html"}, ["click[1]"], True),
    "a fragment that is asked for": ("<a href='#top'>a</a>", {"url": "index.html#top"}, ["click[1]"], True),
    "another fragment": ("<a href='#top'>a</a>", {"url": "index.html#end"}, ["click[1]"], False),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    tasks = []
    for number, (name, (body, condition, _, _)) in enumerate(CASES.items()):
        page = "index.html" if "url" in condition else f"{number}.html"
        (folder / page).write_text(f"<!doctype html><body>{body}")
        tasks.append({"id": name, "start": page, "instruction": "Do it.", "success": condition})
    (folder / "tasks.yaml").write_text(json.dumps({"tasks": tasks}))
    env = WebEnv(source="folder", folder=str(folder))
    yield env
    env.close()


@pytest.mark.parametrize("name", CASES)
def test_what_the_agent_types_is_not_what_the_page_says(judged, name):
    _, _, actions, succeeds = CASES[name]
    judged.reset(options={"task": name})
    for action in actions:
        _, _, over, _, info = judged.step(action)
        if over:
            break
        assert info["valid"], action
    assert info["success"] == over == succeeds


def test_a_missing_folder_or_file_is_an_error(tmp_path):
    with rejects(InvalidArgument, key="folder"):
        Folder(str(tmp_path / "none"))
    with rejects(InvalidArgument, "read", where="tasks.yaml"):
        Folder(str(tmp_path))
