"""The processes of a sweep: started as places become free, ended in order, and never left behind."""

import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from gagpo.sweeps import processes

SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)
ODD_FAILS = """
import sys
name = [word for word in sys.argv if word.startswith("name=")][0]
if int(name[-1]) % 2:
    print("some warning\\ngagpo: the disk is full\\nbye", flush=True)
    sys.exit(2)
"""


def ready(statuses):
    return [status for status in statuses if status.log.exists() and "ready" in status.log.read_text()]


def when(condition, action, seconds=30):
    """Call ``action`` in a thread once ``condition`` holds."""

    def wait():
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def children():
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


def test_a_failed_run_stops_no_other_and_names_its_error(runner, statuses):
    runs, observed = statuses(4), []
    runner(runs, ODD_FAILS, observe=lambda status: observed.append((status.run.name[-1], status.state))).run()
    assert [status.state for status in runs] == ["failed", "finished", "failed", "finished"]
    assert runs[0].reason == "status 2: the disk is full"
    assert runs[0].log.read_text().startswith("$ gagpo train run.yaml seed=1 name=run-seed1 --runs ")
    assert sorted(observed) == sorted([(n, "running") for n in "1234"] + [(s.run.name[-1], s.state) for s in runs])


def test_a_run_that_fails_before_its_start_returns_names_its_error(runner, statuses, monkeypatch):
    """As on a busy machine, where this process continues only after the run has ended."""

    class Late(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.wait(30)

    monkeypatch.setattr(processes.subprocess, "Popen", Late)
    runs = statuses(1)
    runner(runs, ODD_FAILS).run()
    assert runs[0].reason == "status 2: the disk is full"


def test_no_more_than_jobs_run_at_once(runner, statuses):
    runs, highest = statuses(4), []

    def observe(_):
        highest.append(sum(status.state == "running" for status in runs))

    runner(runs, "import time; time.sleep(0.3)", jobs=2, observe=observe).run()
    assert max(highest) == 2 and all(status.state == "finished" for status in runs)


def test_a_run_that_was_begun_is_resumed_and_a_finished_one_is_left(runner, statuses):
    runs = statuses(3)
    runs[0].state = "finished"
    runs[1].changes = ["training.iterations=9"]
    runner(runs, "import sys; print(sys.argv[1:])").run()
    assert not runs[0].log.exists()
    assert f"['train', '--resume', '{runs[1].run.folder}', 'training.iterations=9']" in runs[1].log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_lets_every_run_save_and_starts_no_other(runner, statuses, number, capsys):
    runs = statuses(3)
    sweep = runner(runs, SAVES, jobs=2)
    when(lambda: len(ready(runs)) == 2, lambda: os.kill(os.getpid(), number))
    sweep.run()
    assert sweep.stopped_by == number
    assert [status.state for status in runs] == ["stopped", "stopped", "waiting"]
    assert all("saved" in status.log.read_text() for status in runs[:2]) and not children()
    assert "stopping 2 runs: each writes a checkpoint first; Ctrl-C again kills them" in capsys.readouterr().err


def test_a_run_that_does_not_end_is_killed_at_the_deadline_or_by_a_second_signal(runner, statuses, monkeypatch):
    monkeypatch.setattr(processes, "SAVE_SECONDS", 0.5)
    runs = statuses(1)
    when(lambda: ready(runs), lambda: os.kill(os.getpid(), signal.SIGTERM))
    started = time.monotonic()
    runner(runs, STUBBORN).run()
    assert runs[0].state == "stopped" and not children()
    monkeypatch.setattr(processes, "SAVE_SECONDS", 50)
    again = statuses(1)
    again[0].log.unlink()

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    when(lambda: ready(again), twice)
    runner(again, STUBBORN).run()
    assert again[0].state == "stopped" and not children() and time.monotonic() - started < 30


def test_an_error_of_this_process_ends_all_runs(runner, statuses):
    runs = statuses(2)

    def watch():
        if len(ready(runs)) == 2:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        runner(runs, SAVES, observe=lambda status: None, watch=watch).run()
    assert not children() and all("saved" in status.log.read_text() for status in runs)


def test_a_killed_run_says_what_to_try(runner, statuses):
    runs = statuses(1)
    runner(runs, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").run()
    assert runs[0].reason == "killed by signal 9 (SIGKILL); if memory ran out, lower --jobs"
