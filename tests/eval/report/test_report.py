"""The report: complete, self-contained, and harmless whatever a model wrote."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from gagpo.eval.report.page import text
from gagpo.eval.report.report import write_report
from gagpo.runs.reading import BadResult
from tests.browsers import chromium
from tests.rejections import rejects

HOSTILE = "<script>document.title='taken'</script><img src=http://a.example/x onerror=alert(1)>\"'&\u202e\x1b[31m]]>-->"


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed in order."""

    VOID = ("meta", "br", "wbr", "img", "link", "input", "hr")

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.words, self.stack = [], [], [], []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attributes]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attributes]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def report(folder):
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_everything_of_the_run_is_on_the_page(tmp_path, make_run):
    folder = make_run(tmp_path / "gagpo-seed1")
    page = report(folder)
    saved = json.loads((folder / "evals" / "after-valid_unseen.json").read_text())["summary"]
    for segment in (
        f"{100 * saved['success_rate']:.1f} % after training",
        f"{saved['successes']} of 60",
        "better worse p",
        "of the groups have no advantage",
        "exact McNemar",
        "pick_heat_",
        "repeated_ states",  # the name may wrap
        "zero_ advantage_ groups",
        "clip_ fraction",
        "grad_ norm",
        "entropy",
        "Time: environments 1",
        "hash 6666666666666666",
        "2.13.0",
        "algorithm: gagpo",
        "first two successes",
        "Nothing happens.",
    ):
        assert segment in page.text, segment
    assert page.tags.count("details") == 9  # eight episodes, and the table of all numbers
    assert "<details><summary>All numbers</summary>" in (folder / "report.html").read_text()
    assert (folder / "curves.png").stat().st_size > 10_000
    assert not list(folder.glob("*.part"))


def test_the_average_is_compared_with_the_start_beside_the_last_weights(tmp_path, make_run):
    """A run keeps an average unless told otherwise, and its page says as much of either as of a run without one."""
    page = report(make_run(tmp_path / "run", iterations=4, average=True)).text
    for stage in ("after", "average"):
        assert len(re.findall(rf" {stage} \+[\d.]+ \[[+-][\d.]+, \+[\d.]+\] \d", page)) == 2  # one for each split
    assert page.count("against before; 95 % intervals, paired by task; p: exact McNemar") == 2
    assert page.count("p (Holm)") == 2


def test_the_page_asks_nobody_for_anything(tmp_path, make_run):
    page = report(make_run(tmp_path / "run", iterations=4, hostile=HOSTILE))
    assert not {"script", "iframe", "link", "object", "embed", "form", "a", "base", "use"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name not in ("href", "srcset"), (tag, name, value)
        assert name != "src" or (tag == "img" and value.startswith("data:image/png;base64,"))
    policy = {name: value for _, name, value in page.attributes if name == "content" and "default" in value}
    assert policy == {"content": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
    styles = re.search(r"<style>(.*?)</style>", (tmp_path / "run" / "report.html").read_text(), re.DOTALL)
    assert styles and "url(" not in styles[1] and "@import" not in styles[1]


def test_hostile_text_is_shown_and_does_nothing(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=4, hostile=HOSTILE)
    page = report(folder)
    assert "<script>document.title='taken'</script><img src=http://a.example/x onerror=alert(1)>" in page.text
    raw = (folder / "report.html").read_text(encoding="utf-8")
    assert "\\u202e\\x1b[31m" in raw and "\u202e" not in raw and "\x1b" not in raw
    assert Page(raw).tags.count("title") == 1


def test_a_hundred_thousand_characters_are_cut_and_counted():
    output = text("x" * 100_000)
    assert len(output) < 6200 and "94,000 more characters" in output


def test_lone_surrogates_do_not_break_the_file(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=2)
    path = folder / "episodes" / "after-valid_unseen.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    record["turns"][0]["response"] = "half a pair \ud83d"
    path.write_text(json.dumps(record) + "\n")
    assert "half a pair \\ud83d" in report(folder).text


@pytest.mark.parametrize(
    "missing",
    [["metrics.jsonl"], ["evals"], ["episodes"], ["config.yaml", "versions.json"], ["metrics.jsonl", "episodes"]],
)
def test_what_the_folder_lacks_is_left_out(tmp_path, make_run, missing):
    folder = make_run(tmp_path / "run", iterations=3)
    for name in missing:
        target = folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    page = report(folder)
    headings = {"metrics.jsonl": "Diagnostics", "evals": "Result", "episodes": "Sample episodes"}
    for name, heading in headings.items():
        assert (heading in page.text) == (name not in missing)


def test_a_folder_with_a_single_evaluation_has_a_report(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=3)
    (folder / "metrics.jsonl").unlink()
    for path in (folder / "evals").glob("*"):
        if path.name != "after-valid_unseen.json":
            path.unlink()
    page = report(folder)
    assert "Rise" not in page.text and "of 60" in page.text and not (folder / "curves.png").exists()


def test_panels_that_differ_are_not_compared(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=3)
    path = folder / "evals" / "before-valid_unseen.json"
    path.write_text(path.read_text().replace("6" * 16, "7" * 16))
    assert "Not comparable" in report(folder).text


def test_no_run_no_report(tmp_path):
    with rejects(BadResult, "run folder"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_samples_are_the_first_successes_then_the_first_failures(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=2)
    path = folder / "episodes" / "after-valid_unseen.jsonl"
    turn = {"observation": "o", "response": "r", "action": "a"}
    rows = [
        {
            "task": f"task {i}",
            "success": i in (1, 4, 5),
            "outcome": "failed" if i == 1 else "terminated",
            "turns": [turn],
        }
        for i in range(9)
    ]
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"task": "u", "succ\n{"task": ["odd"], "turns": []}'
    )
    page = report(folder).text
    output = page.partition("after-valid_unseen")[2]
    assert re.findall(r"1 turn: task (\d)", output) == ["4", "5", "0", "1"]
    assert "line 10: not JSON" in output, "a broken line is named, and the good ones are shown"


@pytest.mark.browser
def test_in_a_real_browser_nothing_runs_and_nothing_sticks_out(tmp_path, make_run):
    path = write_report(make_run(tmp_path / "run", iterations=5, hostile=HOSTILE + "x" * 300))
    with chromium() as browser:
        for width in (360, 1200):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.get(path.as_uri())
            browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.title == "run: report"
        assert browser.execute_script("return document.scripts.length") == 0
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert browser.get_log("browser") == []
        backgrounds = []
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            backgrounds.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert backgrounds == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
