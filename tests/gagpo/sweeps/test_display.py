"""The progress of a sweep: a table in a terminal, lines in a pipe."""

import io
import re
import sys

import pytest
from rich.console import Console

from gagpo.sweeps.display import SweepDisplay, counts


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    times = [0.0]

    def read():
        return times[0]

    read.times = times
    return read


def write_row(status, iteration):
    status.run.folder.mkdir(parents=True, exist_ok=True)
    with (status.run.folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"iteration": {iteration}, "success_rate": 0.25, "reward_mean": 0.5}}\n')


def test_a_pipe_gets_a_line_for_every_change_and_now_and_then_the_progress(statuses, clock):
    runs, lines = statuses(2), []
    display = SweepDisplay(runs, lines.append, clock=clock)
    with display.showing():
        runs[0].state = "running"
        display.changed(runs[0])
        for iteration in range(1, 31):
            write_row(runs[0], iteration)
            clock.times[0] += 1.5
            display.watch()
        runs[0].state, runs[0].seconds = "finished", 45.0
        display.changed(runs[0])
        runs[1].state, runs[1].reason = "failed", "status 2: no disk"
        display.changed(runs[1])
    assert lines == [
        "run-seed1: started",
        "run-seed1: iteration 10 of 2, reward 0.500, success 25.0 %",
        "run-seed1: iteration 20 of 2, reward 0.500, success 25.0 %",
        "run-seed1: iteration 30 of 2, reward 0.500, success 25.0 %",
        "run-seed1: finished in 45 s, iteration 30 of 2, reward 0.500, success 25.0 %",
        f"run-seed2: failed: status 2: no disk; log: {runs[1].log}",
    ]


def test_a_terminal_gets_one_table_and_no_lines(statuses, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    runs, lines = statuses(3), []
    display = SweepDisplay(runs, lines.append, clock=clock)
    with display.showing():
        runs[1].state = "running"
        write_row(runs[1], 1)
        clock.times[0] = 5.0
        display.watch()
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert lines == [] and "3 runs: 1 running, 2 waiting, 5 s" in output
    assert re.search(r"run-seed2\s*│ running\s*│\s*1/2 │\s*25\.0 │\s*0\.500", output)


def test_a_quiet_sweep_shows_nothing(statuses, clock, capsys):
    runs, lines = statuses(1), []
    display = SweepDisplay(runs, lines.append, quiet=True, clock=clock)
    with display.showing():
        runs[0].state = "running"
        display.changed(runs[0])
        clock.times[0] = 90.0
        display.watch()
    assert lines == [] and capsys.readouterr().err == ""


@pytest.mark.parametrize(("columns", "lines"), [(40, 12), (80, 24), (200, 50)])
def test_the_table_fits_the_terminal_and_shows_what_matters(statuses, clock, monkeypatch, columns, lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    runs = statuses(60)
    for number, status in enumerate(runs):
        status.state = ("finished", "waiting", "running", "failed")[0 if number < 40 else 1 if number < 56 else 2]
    runs[50].state = "failed"
    display = SweepDisplay(runs, print, clock=clock)
    console = Console(file=io.StringIO(), width=columns)
    console.print(display.table())
    output = console.file.getvalue().splitlines()
    assert max(map(len, output)) <= columns
    rows = display.table().rows
    assert len(rows) <= max(3, lines - 7) and [row[1] for row in rows].count("running") == min(4, len(rows))
    assert counts(runs) == "60 runs: 4 running, 1 failed, 15 waiting, 40 finished"
