"""A run in the terminal: every width, a pipe, a run that has only begun, and one that is none."""

import json
import math
import re

import pytest
from rich.console import Console

from gagpo.eval.runs import load_run
from gagpo.eval.watch import last_episodes, screen, sparkline, watch
from gagpo.runs.reading import BadResult


def printed(renderable, width):
    console = Console(width=width, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_screen_fits_any_terminal(tmp_path, make_run, width):
    run = load_run(make_run(tmp_path / "gagpo-seed1", iterations=20, hostile="\x1b[2J\u202e<b>"))
    text = printed(screen(run, width, last_episodes(run.folder)), width)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("gagpo-seed1", "iteration 20", "success", "entropy", "time: environments", "teach nothing"):
        assert part in re.sub(r"\s+", " ", text), part
    assert "\x1b" not in text and "\u202e" not in text


def test_sparklines_by_hand():
    assert sparkline([0.0, 0.5, 1.0], 10, 0, 1) == "▁▅█"
    assert sparkline([1, 2, 3, 4], 2) == "▁█" and sparkline([5, 5], 5) == "▁▁"
    assert sparkline([1, math.nan, 2], 5) == "▁ █" and sparkline([math.nan], 5) == ""


def test_it_waits_for_the_first_numbers(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(BadResult, match="neither metrics"):
        watch(folder)
    (folder / "config.yaml").write_text("name: run\n")
    looks = []

    def slept(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt
        (folder / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "success_rate": 0.5}) + "\n")

    monkeypatch.setattr("gagpo.eval.watch.time.sleep", slept)
    with pytest.raises(KeyboardInterrupt):
        watch(folder)
    told = " ".join(capsys.readouterr().out.split())
    assert "no numbers yet" in told and "iteration 1" in told
