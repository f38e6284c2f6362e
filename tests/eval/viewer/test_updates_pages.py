"""A run that trains, in a real browser: the page follows it from disk, with the command in a process of its own."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.eval.viewer.test_pages import Pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@contextmanager
def following(path, out):
    """``gagpo view PATH --live`` until the block ends; the process, once its page can be opened."""
    command = [sys.executable, "-m", "gagpo", "view", str(path), "--live", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            assert "Ctrl-C ends it" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def wait_for(pages, text, seconds=120):  # a busy machine takes long to draw
    end = time.monotonic() + seconds
    while text not in pages.text:
        assert time.monotonic() < end, f"no {text!r} in {pages.text[:2000]}"
        time.sleep(0.1)


def append(run, iteration, source):
    """An iteration as a trainer writes it: episodes first, then its row."""
    (run / "episodes" / f"train-{iteration:04d}.jsonl").write_bytes(source.read_bytes())
    row = {"iteration": iteration, "success_rate": 0.5, "repeated_states": 0.05, "mean_turns": 3}
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps(row) + "\n")


def test_the_page_follows_a_run_through_a_kill_and_its_end(tmp_path, make_groups, browser, hostile):
    run = make_groups(tmp_path / "run", iterations=2)
    (run / "config.yaml").write_text("training: {iterations: 9}\n")
    later = make_groups(tmp_path / "later", iterations=1, text=hostile) / "episodes" / "train-0001.jsonl"
    with following(run, tmp_path / "out") as process:
        pages = Pages(browser, (tmp_path / "out" / "index.html").as_uri())
        wait_for(pages, "iteration 2 of 9")
        assert "live: last change" in pages.text and "Episodes of iteration 2" in pages.text
        assert "Here the two ways part" in pages.text and pages.js(
            "return document.querySelectorAll('.parting').length"
        )
        pages.js("document.querySelector('details.more-curves').open = true; scrollTo(0, 150)")
        append(run, 3, later)
        wait_for(pages, "iteration 3 of 9")
        assert pages.js("return document.querySelector('details.more-curves').open && scrollY === 150")
        assert "62 % of the turns are in a state" in pages.text  # health, over all iterations
        assert "<script>document.title" in pages.text and browser.title != "taken"
        assert pages.js("return document.querySelectorAll('main img, main script, main iframe').length") == 0
        rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text(rows[0])  # killed, and resumed from iteration 1
        wait_for(pages, "iteration 1 of 9")
        append(run, 2, later)
        wait_for(pages, "iteration 2 of 9")
        pages.click("section.newest li a", "#/group/")
        pages.go("#/groups")
        pages.js("document.getElementById('filter').focus()")
        append(run, 3, later)
        end = time.monotonic() + 120
        while pages.js("return viewer.data.runs[0].metrics.iteration.at(-1)") != 3:
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(0.3)
        assert pages.js("return document.activeElement.id") == "filter"
        process.send_signal(signal.SIGINT)
        wait_for(pages, "live: ended")
        assert process.wait(120) == 130
    assert pages.errors() == []


def test_a_sweep_has_one_page_with_the_curves_of_all_runs(tmp_path, make_groups, browser):
    sweep = tmp_path / "runs" / "walk-by-seed"
    (sweep / "logs").mkdir(parents=True)
    for name in ("walk-seed1", "walk-seed2"):
        make_groups(tmp_path / "runs" / name)
        (sweep / "logs" / f"{name}.log").write_text("")
    with following(sweep, tmp_path / "out"):
        pages = Pages(browser, (tmp_path / "out" / "index.html").as_uri())
        wait_for(pages, "2 runs")
        curves = (
            "return [...document.querySelectorAll('svg.chart')].map((chart) => chart.querySelectorAll('.line').length)"
        )
        assert pages.js(curves) == [2]
        make_groups(tmp_path / "runs" / "walk-seed3")
        (sweep / "logs" / "walk-seed3.log").write_text("")
        wait_for(pages, "3 runs")
        assert pages.js(curves) == [3] and pages.errors() == []
