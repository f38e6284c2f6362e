"""The pages in a real browser: from the curve to a disputed group, with hostile text, by keyboard, without errors."""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from gagpo.eval.viewer.export import export

pytestmark = pytest.mark.browser


class Pages:
    """The viewer in a browser; waits until the page that the address names is drawn."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address
        browser.get(address)
        self.wait("#/")

    def js(self, code, *arguments):
        return self.browser.execute_script(code, *arguments)

    def wait(self, start, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready, here = self.js("return [document.documentElement.dataset.ready, location.hash || '#/']")
            if ready == here and here.startswith(start):
                return here
            time.sleep(0.05)
        raise AssertionError(f"no page at {start}: {self.js('return location.href')}")

    def click(self, selector, start):
        self.js(
            "const one = document.querySelector(arguments[0]); "
            "one.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))",
            selector,
        )
        return self.wait(start)

    def go(self, link):
        self.js("location.hash = arguments[0]", link)
        return self.wait(link)

    def press(self, key):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(key).perform()

    @property
    def text(self):
        return self.js("return document.body.innerText")

    def errors(self):
        return self.browser.get_log("browser")


@pytest.fixture(scope="module")
def axe():
    """The source of axe-core, installed for this test alone."""
    if not (shutil.which("npm") and shutil.which("chromium")):
        pytest.skip("npm or Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False).returncode:
            pytest.skip("axe-core cannot be installed here")
        yield (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def test_three_clicks_lead_from_the_curve_to_a_turn_in_dispute(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out").as_uri())
    pages.click("a.point", "#/groups")
    assert "|GAGPO − GRPO|" in pages.text and "opposite in" in pages.text
    pages.click(".rows tbody a", "#/group/")
    assert pages.js("return document.querySelectorAll('td.differs').length") > 0
    assert "★" in pages.js("return document.querySelector('svg.graph').textContent")
    pages.click("td.differs a", "#/episode/")
    assert pages.js("return document.querySelector('.turn-card.chosen').classList.contains('differs')")
    assert pages.js("return document.querySelectorAll('.token').length") > 0
    assert pages.errors() == []


def test_hostile_text_is_shown_and_does_nothing_anywhere(tmp_path, make_groups, browser, hostile):
    run = make_groups(tmp_path / "run", text=hostile)
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    addresses = [
        "#/groups",
        "#/episodes",
        "#/group/0/train-0001/0",
        "#/episode/0/train-0001/0/1",
        "#/task/0",
        "#/compare/0/before-test/0/0/0/after-test/0/0",
        "#/nothing/%E0%A4%A/here",
    ]
    for address in addresses:
        pages.js("location.hash = arguments[0]", address)
        pages.wait(address[:8])
        if "nothing" not in address:
            assert "<script>document.title" in pages.text, address
        assert "\\u202e\\u001b[31m" in pages.text or not address.startswith(("#/episode/", "#/compare"))
        assert "\u202e" not in pages.text and "taken" not in browser.title.split("·")[0].replace(hostile[:34], "")
        assert pages.js("return document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert browser.title != "taken" and pages.errors() == []


def test_an_invalid_turn_says_why(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    first, *remaining = (json.loads(line) for line in path.read_text().splitlines())
    for turn, why in zip(first["turns"], ("not parsed", "cut off", "refused"), strict=True):
        turn |= {"valid": False, "invalid": why}
    first["turns"][2]["refusal"] = "<i>Nothing</i> happens."
    remaining[0]["turns"][0]["valid"] = False  # of an older version: it does not say
    path.write_text("".join(json.dumps(item) + "\n" for item in (first, *remaining)))
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    of_task = "return viewer.data.groups.task.findIndex((task, g) => viewer.data.tasks[task] === 'task 0' && "
    group = pages.js(of_task + "viewer.group(g).source.label === 'train-0001')")
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 0)", group))
    messages = pages.js("return [...document.querySelectorAll('.turn-card .side .bad')].map((one) => one.innerText)")
    assert messages[:2] == ["no action was found in the response", "cut off at the token limit"]
    assert messages[2].startswith("refused by the environment: ") and "<i>Nothing</i> happens." in messages[2]
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 1)", group))
    assert "invalid action" in pages.text


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="


def test_a_turn_with_a_screenshot_shows_it(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1, groups=1, tries=2)
    file = run / "episodes" / "train-0001.jsonl"
    first, second = map(json.loads, file.read_text().splitlines())
    first["turns"][1]["screenshot"] = PIXEL
    second["turns"][0]["screenshot"] = 'x" onerror="document.title=1'
    file.write_text("".join(json.dumps(episode) + "\n" for episode in (first, second)))
    pages = Pages(browser, export([run], tmp_path / "view").resolve().as_uri())
    assert "screenshot" in pages.js("return viewer.data.problems.join()")  # the second episode is left out, and named
    pages.go("#/episode/0/train-0001/0/0")
    output = """return Promise.all(Array.from(document.images, (image) => image.decode().then(() =>
        [image.alt, image.naturalWidth, image.closest('article').id])))"""
    assert pages.js(output) == [["Screenshot of the page in turn 2", 1, "turn-2"]]
    assert pages.errors() == []


def test_what_a_turn_changed_is_shown_as_text(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1, groups=1, tries=2)
    file = run / "episodes" / "train-0001.jsonl"
    first, second = map(json.loads, file.read_text().splitlines())
    first["turns"][1]["diff"] = "changed app/a.txt\n-<img src=x onerror=alert(1)>\n+\x1b[31m\u202ered"
    file.write_text("".join(json.dumps(episode) + "\n" for episode in (first, second)))
    pages = Pages(browser, export([run], tmp_path / "view").resolve().as_uri())
    pages.go("#/episode/0/train-0001/0/0")
    output = """return Array.from(document.querySelectorAll('#turn-2 .diff span'),
        (line) => [line.className, line.textContent])"""
    assert pages.js(output) == [
        ["", "changed app/a.txt"],
        ["removed", "-<img src=x onerror=alert(1)>"],
        ["added", "+\\u001b[31m\\u202ered"],
    ]
    assert pages.js("return document.querySelectorAll('.diff').length") == 1 and pages.errors() == []


def test_tokens_are_shown_by_what_the_gate_left_of_their_gradient(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1)
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    group = pages.js(
        "return viewer.data.groups.task.findIndex((_, g) => viewer.group(g).source.label === 'train-0001')"
    )
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 0)", group))
    pages.js("[...document.querySelectorAll('.choice *')].find((one) => one.textContent === 'gate weight').click()")
    titles = pages.js("return [...document.querySelector('.strip').children].map((token) => token.title)")
    assert titles == ["gate weight 1", "gate weight 0, clipped"]
    assert pages.errors() == []


def test_filters_sorting_and_keys(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out").as_uri())
    pages.press("g")
    pages.wait("#/groups")
    assert "16 groups" in pages.text
    results = pages.js(
        "return [{task: 'task 1'}, {type: 'kind 0'}, {outcome: 'none'}, {iteration: '2'}, {credit: 'differs'}, {}]"
        ".map((query) => viewer.matchingGroups(query).length)"
    )
    assert results == [5, 6, 5, 4, 3, 16]
    assert pages.js("return viewer.matchingEpisodes({outcome: 'success', stage: 'train'}).length") == 3 * 5
    pages.press("/")
    assert pages.js("return document.activeElement.id") == "filter"
    pages.press("task 1")
    end = time.monotonic() + 30
    while "5 groups" not in pages.text and time.monotonic() < end:
        time.sleep(0.05)
    assert "5 groups" in pages.text
    pages.press("\ue00c")  # Escape
    pages.press("j")
    assert pages.js("return document.activeElement.tagName") == "A"
    pages.press("\ue007")  # Enter
    pages.wait("#/group/")
    before = pages.js("return location.hash")
    pages.press("]")
    pages.wait("#/group/")
    assert pages.js("return location.hash") != before
    pages.press("u")
    pages.wait("#/groups")
    pages.press("?")
    assert pages.js("return document.getElementById('keys').open")
    assert pages.errors() == []


def test_the_list_begins_with_what_is_disputed_in_training(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out").as_uri())
    pages.go("#/groups")
    rows = pages.js(
        "const { groups, sources } = viewer.data; const at = new Map([...groups.size.keys()].map((g) => "
        "[viewer.groupLink(g), [sources[groups.source[g]].stage === 'train', groups.wins[g] > 0 && "
        "groups.wins[g] < groups.size[g], groups.differ[g]]]));"
        "return [...document.querySelectorAll('.rows tbody a')].map((one) => at.get(one.getAttribute('href')))"
    )
    assert len(rows) == 16 and rows[0][:2] == [True, True] and rows[0][2] > 0
    rank = [(mixed, mixed and trained, differ) for trained, mixed, differ in rows]
    assert rank == sorted(rank, reverse=True)
    assert "training groups with mixed outcomes first" in pages.text
    pages.js("document.querySelector('thead button').click()")
    assert "mixed outcomes first" not in pages.text


def test_frames_are_few_and_the_words_beside_them_count_and_explain_them(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out").as_uri())
    observed = 0
    for group in range(4):
        pages.go(f"#/group/0/train-0001/{group}")
        output = {}
        for name in ("gagpo", "grpo"):
            pages.js("document.querySelector(`input[value='${arguments[0]}']`).click()", name)
            output[name] = pages.js("return [...document.querySelectorAll('td.turn')].map((one) => +one.dataset.sign)")
        frames = pages.js("return [...document.querySelectorAll('td.turn')].map((one) => one.matches('.differs'))")
        opposite = [a * b < 0 for a, b in zip(output["gagpo"], output["grpo"], strict=True)]
        assert all(symbol for frame, symbol in zip(frames, opposite, strict=True) if frame)
        assert f"GAGPO and GRPO disagree in {sum(frames)} of {len(frames)} turns: one is above average" in pages.text
        assert "more than 0.5 standard deviations of the group" in pages.text
        observed += sum(frames)
    assert observed == 1


def test_a_group_opens_with_its_task_in_english_and_the_turn_where_the_ways_part(
    tmp_path, make_groups, browser, hostile
):
    run = make_groups(tmp_path / "run", iterations=1)
    path = run / "episodes" / "train-0001.jsonl"
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    for episode in episodes:
        if episode["task"] == "task 0":
            episode["info"] = {"goal": f"go to the hall {hostile}"}
        elif episode["task"] == "task 1":
            episode["info"] = {"goal": ["no text"]}
    path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    pages.go("#/groups?task=the+HALL")  # found by its sentence
    rows = pages.js("return [...document.querySelectorAll('.rows tbody a')].map((a) => [a.innerText, a.title])")
    assert rows[0][0].startswith("go to the hall <script>") and {title for _, title in rows} == {"task 0"}
    pages.go("#/group/0/train-0001/0?credit=gagpo")
    assert pages.js("return document.querySelector('h1').innerText").startswith("Go to the hall <script>")
    note = pages.js("return document.querySelector('.parting-note').innerText")
    assert note.startswith("Here the two ways part: left") and "against right" in note and "+" in note and "−" in note
    marked = pages.js("return [...document.querySelectorAll('td.parting a')].map((link) => link.innerText)")
    assert sorted(marked) == ["left", "right"] and "the credit is 0" in pages.text
    pages.js("document.querySelector(`input[value='grpo']`).click()")  # the same for a whole episode
    assert pages.js("return document.querySelectorAll('.parting-note, td.parting').length") == 0
    pages.go("#/group/0/train-0001/2?credit=gagpo")  # no episode succeeds
    assert pages.js("return document.querySelectorAll('.parting-note').length") == 0
    pages.go("#/group/0/train-0001/1")
    assert pages.js("return document.querySelector('h1').innerText") == "task 1" and pages.errors() == []


def test_what_the_model_was_sent_is_folded_and_one_click_away(tmp_path, make_groups, browser, hostile):
    run = make_groups(tmp_path / "run", iterations=1, text=hostile)
    path = run / "episodes" / "train-0001.jsonl"
    first, *remaining = (json.loads(line) for line in path.read_text().splitlines())
    del first["turns"][1]["sent"]
    first["turns"][1]["tokens"]["read"] = ["<|user|>", "older file"]
    del first["turns"][2]["sent"]
    path.write_text("".join(json.dumps(item) + "\n" for item in (first, *remaining)))
    pages = Pages(browser, export([path], tmp_path / "out").as_uri())
    pages.go("#/episode/0/train-0001/0/0")
    assert "whole prompt, 9 tokens" in pages.text and "<|user|>" not in pages.text
    pages.js("document.querySelectorAll('.sent summary').forEach((one) => one.click())")
    assert "<|user|>start<script>document.title" in pages.text and "<|user|>older file" in pages.text
    assert pages.js("return document.querySelectorAll('.sent').length") == 2
    assert browser.title != "taken" and pages.errors() == []


def test_a_result_has_pages_without_turns(tmp_path, make_run, browser):
    result = make_run(tmp_path / "run") / "evals" / "after-valid_unseen.json"
    path = result.rename(tmp_path / "mine.json")
    pages = Pages(browser, export([path], tmp_path / "out").as_uri())
    assert "mine.json" in pages.text and "valid_unseen:" in pages.text
    pages.go("#/group/0/mine/0")
    assert "No turns are recorded here" in pages.text
    pages.go("#/episode/0/mine/0/0")
    assert "3 turns" in pages.text and "No turns are recorded here" in pages.text
    assert pages.errors() == []


def test_on_a_phone_rows_are_cards_and_show_every_column(tmp_path, make_groups, make_run, browser):
    runs = [make_groups(tmp_path / "groups"), make_run(tmp_path / "walk-seed1", average=True)]
    pages = Pages(browser, export(runs, tmp_path / "out").as_uri())
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    for address, columns in (("#/", 7), ("#/groups", 6), ("#/episodes", 6)):
        pages.go(address)
        cells = pages.js(
            "return [...document.querySelector('.rows tbody tr').children].map((one) => { const box = "
            "one.getBoundingClientRect(); return [box.left >= 0 && box.right <= innerWidth && box.height > 0, "
            "getComputedStyle(one, '::before').content]; })"
        )
        assert len(cells) == columns and all(visible for visible, _ in cells), address
        assert all(name not in ('""', "none") for _, name in cells[1:]), "each value has the name of its column"
        assert pages.js("const box = document.querySelector('.wide'); return box.scrollWidth <= box.clientWidth + 1")


def test_filters_offer_no_empty_name_and_no_choice_of_one(tmp_path, make_groups, browser):
    runs = [make_groups(tmp_path / name) for name in ("one", "two")]  # neither environment nor algorithm is known
    pages = Pages(browser, export(runs, tmp_path / "out").as_uri())
    assert "(none)" not in pages.text
    chosen = "return [...document.querySelectorAll('.filters select')].map((one) => one.selectedOptions[0].textContent)"
    assert pages.js(chosen) == []
    pages.go("#/groups")
    assert pages.js(chosen) == ["any type", "any outcome", "any run", "any", "any"] and "(none)" not in pages.text


OVERLAPS = """
const drawn = document.querySelector('svg.graph');
const frame = drawn.getBoundingClientRect();
const boxes = [...drawn.querySelectorAll('text, circle')].map((one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect();
  const owner = one.parentNode.getAttribute('transform');
  return { text: one.textContent || 'circle', owner, left, right, top, bottom };
});
const found = [];
for (const a of boxes) {
  const inside = a.left >= frame.left && a.right <= frame.right && a.top >= frame.top && a.bottom <= frame.bottom;
  if (!inside) found.push([a.text, 'outside']);
  for (const b of boxes) {
    if (a === b || a.text === 'circle' || (a.owner && a.owner === b.owner)) continue;
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1 || a.top >= b.bottom - 1 || b.top >= a.bottom - 1;
    if (!beside) found.push([a.text, b.text]);
  }
}
return [boxes.length, found];
"""


CROSSED = """
const drawn = document.querySelector('svg.graph');
const frame = drawn.getBoundingClientRect();
const found = [];
for (const label of drawn.querySelectorAll('.label')) {
  const { left, right, top, bottom } = label.getBoundingClientRect();
  for (const path of drawn.querySelectorAll('.way')) {
    const half = path.getAttribute('stroke-width') / 2;
    for (let at = 0; at < path.getTotalLength(); at += 2) {
      const point = path.getPointAtLength(at);
      const [x, y] = [point.x + frame.left, point.y + frame.top];
      if (x > left && x < right && y + half > top + 1 && y - half < bottom - 1) {
        found.push([label.textContent, path.textContent]);
        break;
      }
    }
  }
}
return found;
"""


@pytest.mark.parametrize(
    "word",
    ["take the remote control 1 from coffeetable 1", "W" * 60, "\u56f3" * 40, "go"],
    ids=["command", "wide", "wider", "short"],
)
def test_labels_of_the_graph_neither_overlap_nor_leave_it(tmp_path, browser, word):
    """64 tries that part, meet, wait in one place and part again, with actions as long as they come."""
    run = tmp_path / "run"
    (run / "episodes").mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"iteration": 1, "success_rate": 0.5}\n')
    lines = []
    for sample in range(64):
        ways = [sample % 2, sample // 2 % 2, sample // 4 % 3]
        path = [
            ("start", f"{word} {ways[0]}"),
            *[(f"room {ways[0]}", "wait")] * 12,
            (f"room {ways[0]}", f"{word} {ways[1]}"),
        ]
        path += [("hall", f"{word} {ways[1]} {ways[2]}"), (f"end {ways[1]}{ways[2]}", word)]
        path += [("start", word), ("hall", word)] * (ways[2] == 1)  # back to earlier states
        path += [("last", word)]
        turns = [{"observation": saw, "response": did, "action": did} for saw, did in path]
        won = sample % 3 == 0
        facts = {"task": "a", "group": 0, "sample": sample, "success": won, "reward": float(won)}
        lines.append(json.dumps({**facts, "outcome": "terminated", "turns": turns}))
    (run / "episodes" / "train-0001.jsonl").write_text("\n".join(lines) + "\n")
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    pages.go("#/group/0/train-0001/0")
    count, results = pages.js(OVERLAPS)
    assert count > 20 and results == []
    assert pages.js(CROSSED) == []
    legend = pages.js("return document.querySelector('figcaption').innerText")
    assert "Dotted lines: back to an earlier state" in legend and "turns that did not leave the state" in legend


def test_the_legend_of_a_graph_explains_the_marks_that_it_has(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out").as_uri())
    pages.go("#/group/0/train-0001/0")
    legend = pages.js("return document.querySelector('figcaption').innerText")
    assert "★: the better choice" in legend and "a chain of states" in legend
    assert "Dotted" not in legend and "did not leave" not in legend


@pytest.mark.parametrize("width", [390, 1280])
def test_charts_are_as_wide_as_the_page_and_their_axes_are_legible(tmp_path, make_groups, browser, width):
    run = make_groups(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = [row | {"mismatch_kl": 4e-5 * i, "clip_fraction": 0.002 * i} for i, row in enumerate(rows, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers))
    pages = Pages(browser, export([run], tmp_path / "out").as_uri())
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    pages.js("document.querySelector('details').open = true")
    end = time.monotonic() + 30
    measure = (
        "const room = document.querySelector('section').getBoundingClientRect().width;"
        "return [...document.querySelectorAll('svg.chart')].map((one) => { const frame = one.getBoundingClientRect();"
        "const texts = [...one.querySelectorAll('text')].map((t) => [t.getBoundingClientRect(), t.textContent]);"
        "return [frame.width / one.closest('figure').getBoundingClientRect().width, frame.width / room, texts.every("
        "([box]) => box.left >= frame.left && box.right <= frame.right && box.height > 9 && box.height < 20),"
        "texts.map(([, text]) => text)]; })"
    )
    while time.monotonic() < end:  # each chart is drawn anew for itself once the opened list has its width
        results = pages.js(measure)
        if results[0][1] > 0.98 and all(beside > 0.98 for beside, *_ in results):
            break
        time.sleep(0.05)
    assert len(results) > 4 and results[0][1] > 0.98
    for beside, _, legible, texts in results:
        rows_named = [text for text in texts if "%" in text] or texts
        assert beside > 0.98 and legible and len(set(rows_named)) == len(rows_named), texts
    assert "(mismatch_kl)" in pages.text and "(zero_advantage_groups)" in pages.text
    assert pages.js("return document.documentElement.scrollWidth <= innerWidth")


def test_runs_of_a_folder_are_sorted_filtered_and_set_side_by_side(tmp_path, make_groups, make_run, browser, hostile):
    runs = []
    for name, seed, rate in (("walk-seed1", 1, 1e-3), ("walk-seed2", 2, 1e-3), ("walk-fast", 1, 1e-2)):
        runs.append(make_run(tmp_path / "runs" / name, seed=seed, rise=0.1 * len(runs)))
        lines = f"name: {name}\nseed: {seed}\nenvironment: {{id: Walk-v0}}\ntraining: {{learning_rate: {rate}}}\n"
        (runs[-1] / "config.yaml").write_text(lines)
    runs.append(make_groups(tmp_path / "runs" / "other"))
    (runs[-1] / "config.yaml").write_text(json.dumps({"algorithm": hostile, "environment": {"id": hostile}}))
    pages = Pages(browser, export(runs, tmp_path / "out").as_uri())
    names = "return [...document.querySelectorAll('.rows tbody th a')].map((one) => one.textContent)"
    assert len(pages.js(names)) == 4 and "<script>document.title" in pages.text and browser.title != "taken"
    assert pages.js("return document.querySelectorAll('svg.spark polyline').length") == 4
    assert pages.js("return document.querySelectorAll('.interval').length") == 3
    pages.js("document.querySelector('thead button').click()")  # by name
    assert pages.js(names) == ["walk-seed2", "walk-seed1", "walk-fast", "other"]
    pages.js(
        "const pick = (name, value) => { const one = document.querySelector(`[name=${name}]`); one.value = value; "
        "one.dispatchEvent(new Event('change')); }; pick('environment', 'Walk-v0')"
    )
    assert pages.js(names) == ["walk-seed2", "walk-seed1", "walk-fast"] and "3 runs" in pages.text
    pages.go("#/runs")
    for number in (0, 2):
        pages.js("document.querySelector(`input[data-run='${arguments[0]}']`).click()", number)
    pages.click(".offer a", "#/runs/0/2")
    assert "training.learning_rate" in pages.text and "0.001" in pages.text and "0.01" in pages.text
    assert "environment.id" not in pages.text
    assert pages.js("return document.querySelector('svg.chart').querySelectorAll('polyline').length") == 2
    pages.click("thead a", "#/run/0")
    assert "walk-seed1" in pages.text
    pages.go("#/runs/0/9")
    assert "Not found" in pages.text and pages.errors() == []


def test_before_and_after_and_two_runs_on_one_task(tmp_path, make_groups, browser):
    runs = [make_groups(tmp_path / name, iterations=1) for name in ("one", "two")]
    pages = Pages(browser, export(runs, tmp_path / "out").as_uri())
    pages.go("#/task/0")
    assert "Before and after training" in pages.text and "one: training, iteration 1" in pages.text
    pages.click("a.button", "#/compare/")
    assert "test, before training" in pages.text and "test, after training" in pages.text
    pages.go("#/compare/0/train-0001/0/0/1/train-0001/0/1")
    assert "one: training" in pages.text and "two: training" in pages.text
    assert pages.errors() == []


def test_nothing_serious_for_axe_in_light_and_dark(tmp_path, make_groups, browser, axe):
    runs = [make_groups(tmp_path / name) for name in ("run", "two")]
    pages = Pages(browser, export(runs, tmp_path / "out").as_uri())
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    pages.js(axe)
    serious = {}
    for scheme in ("light", "dark"):
        if scheme == "dark":
            pages.press("t")
            assert pages.js("return document.documentElement.dataset.theme") == "dark"
        for address in (
            "#/",
            "#/run/0",
            "#/runs/0/1",
            "#/groups",
            "#/group/0/train-0001/0",
            "#/episode/0/train-0001/0/0",
            "#/task/0",
        ):
            pages.go(address)
            execute_async_script = browser.execute_async_script(
                "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => "
                "[v.impact, v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 120) + n.failureSummary)])))"
            )
            bad = [item for item in execute_async_script if item[0] in ("serious", "critical")]
            if bad:
                serious[scheme, address] = bad
    assert serious == {}
