"""The pages in a real browser: from the curve to a disputed group, with hostile text, by keyboard, without errors."""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from gagpo.credit.episode import Grpo
from gagpo.credit.gagpo import Gagpo
from gagpo.eval.viewer.export import Exporter, export
from gagpo.eval.viewer.serve import serving
from gagpo.evaluation.recredit import Recredit

EXPLAIN = Recredit({"gagpo": Gagpo(), "grpo": Grpo()})
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
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False).returncode:
            pytest.skip("axe-core cannot be installed here")
        yield (Path(folder) / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def test_three_clicks_lead_from_the_curve_to_a_turn_in_dispute(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out", EXPLAIN).as_uri())
    pages.click("a.point", "#/groups")
    assert "GAGPO ≠ GRPO" in pages.text and "% of turns" in pages.text
    pages.click(".rows tbody a", "#/group/")
    assert pages.js("return document.querySelectorAll('td.differs').length") > 0
    assert "★" in pages.js("return document.querySelector('svg.graph').textContent")
    pages.click("td.differs a", "#/episode/")
    assert pages.js("return document.querySelector('.turn-card.chosen').classList.contains('differs')")
    assert pages.js("return document.querySelectorAll('.token.dim').length") > 0
    assert pages.errors() == []


def test_hostile_text_is_shown_and_does_nothing_anywhere(tmp_path, make_groups, browser, hostile):
    run = make_groups(tmp_path / "run", text=hostile)
    pages = Pages(browser, export([run], tmp_path / "out", EXPLAIN).as_uri())
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
    first, *rest = (json.loads(line) for line in path.read_text().splitlines())
    for turn, why in zip(first["turns"], ("not parsed", "cut off", "refused"), strict=True):
        turn |= {"valid": False, "invalid": why}
    first["turns"][2]["refusal"] = "<i>Nothing</i> happens."
    rest[0]["turns"][0]["valid"] = False  # of an older version: it does not say
    path.write_text("".join(json.dumps(one) + "\n" for one in (first, *rest)))
    pages = Pages(browser, export([run], tmp_path / "out", EXPLAIN).as_uri())
    of_task = "return viewer.data.groups.task.findIndex((task, g) => viewer.data.tasks[task] === 'task 0' && "
    group = pages.js(of_task + "viewer.group(g).source.label === 'train-0001')")
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 0)", group))
    said = pages.js("return [...document.querySelectorAll('.turn-card .side .bad')].map((one) => one.innerText)")
    assert said[:2] == ["no action was found in the response", "cut off at the token limit"]
    assert said[2].startswith("refused by the world: ") and "<i>Nothing</i> happens." in said[2]
    pages.go(pages.js("return viewer.episodeLink(arguments[0], 1)", group))
    assert "invalid action" in pages.text


def test_filters_sorting_and_keys(tmp_path, make_groups, browser):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out", EXPLAIN).as_uri())
    pages.press("g")
    pages.wait("#/groups")
    assert "16 groups" in pages.text
    found = pages.js(
        "return [{task: 'task 1'}, {type: 'kind 0'}, {outcome: 'none'}, {iteration: '2'}, {credit: 'differs'}, {}]"
        ".map((query) => viewer.matchingGroups(query).length)"
    )
    assert found == [5, 6, 5, 4, 9, 16]
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


def test_before_and_after_and_two_runs_on_one_task(tmp_path, make_groups, browser):
    runs = [make_groups(tmp_path / name, iterations=1) for name in ("one", "two")]
    pages = Pages(browser, export(runs, tmp_path / "out", EXPLAIN).as_uri())
    pages.go("#/task/0")
    assert "Before and after training" in pages.text and "one: training, iteration 1" in pages.text
    pages.click("a.button", "#/compare/")
    assert "test, before training" in pages.text and "test, after training" in pages.text
    pages.go("#/compare/0/train-0001/0/0/1/train-0001/0/1")
    assert "one: training" in pages.text and "two: training" in pages.text
    assert pages.errors() == []


def test_nothing_serious_for_axe_in_light_and_dark(tmp_path, make_groups, browser, axe):
    pages = Pages(browser, export([make_groups(tmp_path / "run")], tmp_path / "out", EXPLAIN).as_uri())
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    pages.js(axe)
    serious = {}
    for scheme in ("light", "dark"):
        if scheme == "dark":
            pages.press("t")
            assert pages.js("return document.documentElement.dataset.theme") == "dark"
        for address in ("#/", "#/groups", "#/group/0/train-0001/0", "#/episode/0/train-0001/0/0", "#/task/0"):
            pages.go(address)
            found = browser.execute_async_script(
                "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => "
                "[v.impact, v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 120) + n.failureSummary)])))"
            )
            bad = [one for one in found if one[0] in ("serious", "critical")]
            if bad:
                serious[scheme, address] = bad
    assert serious == {}


def test_the_viewer_follows_a_run(tmp_path, make_groups, browser):
    run = make_groups(tmp_path / "run", iterations=1)
    with serving(Exporter([run], tmp_path / "out", EXPLAIN, live=True), every=0.2) as address:
        pages = Pages(browser, address)
        assert "live, iteration 1" in pages.text
        make_groups(tmp_path / "later", iterations=2)
        shutil.copy(tmp_path / "later" / "episodes" / "train-0002.jsonl", run / "episodes")
        shutil.copy(tmp_path / "later" / "metrics.jsonl", run)
        end = time.monotonic() + 60
        while "live, iteration 2" not in pages.text and time.monotonic() < end:
            time.sleep(0.2)
        assert "live, iteration 2" in pages.text and "training, iteration 2" in pages.text
        pages.go("#/group/0/train-0002/0")
        assert pages.errors() == []


def test_the_server_answers_this_machine_alone(tmp_path, make_groups):
    import urllib.error
    import urllib.request

    run = make_groups(tmp_path / "run", iterations=1)
    with serving(Exporter([run], tmp_path / "out", EXPLAIN, live=True)) as address:
        assert address.startswith("http://127.0.0.1:")
        assert b"gagpo view" in urllib.request.urlopen(address, timeout=10).read()
        for path, host in (("", "evil.example"), ("data/", None), ("../config.yaml", None)):
            request = urllib.request.Request(address + path, headers={"Host": host} if host else {})
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=10)
