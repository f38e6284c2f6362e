"""``gagpo train CONFIG seed=1,2``: real runs in real processes."""

import functools
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.runs.run_folder import RunFolder
from tests.gagpo.training.resuming import require_equal
from tests.gagpo.training.test_trainer import wait_for_rows

TINY = ["training.iterations=1", "training.ema=false", "evaluation.tasks=1", "rollout.tasks=2", "rollout.group_size=2"]


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_failure_and_is_resumed_by_the_same_command(inside, corridor, tmp_path):
    runs = tmp_path / "runs"
    command = ["train", corridor(), "seed=1,2", *TINY, "name=s", "--runs", runs, "--jobs", 2]
    listed = inside(*command, "--dry-run", "--json")
    assert listed.returncode == 0 and not runs.exists(), listed.stderr
    assert [run["name"] for run in json.loads(listed.stdout.splitlines()[-1])] == ["s-seed1", "s-seed2"]

    (runs / "s-seed2").mkdir(parents=True)
    (runs / "s-seed2" / "notes.txt").write_text("not a run")
    done = inside(*command)
    log = runs / "s-by-seed" / "logs" / "s-seed2.log"
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"s-seed2 failed: status 2: {runs / 's-seed2'}: is a folder with other files" in done.stdout
    assert f"log: {log}" in done.stdout and "2 runs: 1 failed, 1 finished" in done.stdout
    assert RunFolder.open(runs / "s-seed1").finished

    (runs / "s-seed2" / "notes.txt").unlink()
    trained = (runs / "s-seed1" / "config.yaml").stat().st_mtime_ns
    done = inside(*command, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (runs / "s-seed1" / "config.yaml").stat().st_mtime_ns == trained
    record = json.loads(done.stdout.splitlines()[-1])
    assert [run["state"] for run in record["runs"]] == ["finished", "finished"] and record["study"]["s"]["seeds"] == [
        1,
        2,
    ]
    assert (runs / "s-by-seed" / "report.md").exists() and "paired" in done.stdout


FAKE = """
import sys
print("gagpo: no disk" if "seed=2" in sys.argv else "trained", flush=True)
sys.exit(2 if "seed=2" in sys.argv else 0)
"""


def test_a_failed_run_is_named_with_its_log_and_is_the_status(inside, corridor, tmp_path, monkeypatch):
    """The runs are small programs here."""
    monkeypatch.setattr(
        "gagpo.sweeps.processes.module_command", lambda _, __, *words: [sys.executable, "-c", FAKE, *words]
    )
    monkeypatch.setattr("gagpo.sweeps.report.make_report", lambda statuses: None)
    monkeypatch.setattr("gagpo.sweeps.capacity.available_memory", lambda: 64e9)  # other tests may have taken this one's
    command = ["train", corridor(), "seed=1,2,3", "name=s", "--runs", tmp_path / "runs", "--jobs", 3]
    done = inside(*command, "--json")
    log = tmp_path / "runs" / "s-by-seed" / "logs" / "s-seed2.log"
    assert done.returncode == 1 and log.exists(), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "3 runs: 3 waiting" and lines[1].startswith("at once: 3 (")
    assert f"TensorBoard: tensorboard --logdir {tmp_path / 'runs'}" in lines
    assert {"s-seed1: started", "s-seed3: started", "3 runs: 1 failed, 2 finished"} < set(lines)
    assert f"s-seed2 failed: status 2: no disk; log: {log}" in lines, done.stdout
    assert [run["state"] for run in json.loads(lines[-1])["runs"]] == ["finished", "failed", "finished"]


def test_runs_on_different_tasks_have_no_common_report_and_are_no_failure(inside, corridor, tmp_path, monkeypatch):
    def different(statuses):
        raise InvalidArgument("runs measured on different tasks cannot be compared: a, b")

    monkeypatch.setattr("gagpo.sweeps.processes.module_command", lambda _, __, *words: [sys.executable, "-c", ""])
    monkeypatch.setattr("gagpo.sweeps.report.make_report", different)
    done = inside("train", corridor(), "evaluation.tasks=1,2", "--runs", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "the runs have no common report: runs measured on different tasks" in done.stdout


PROGRAM = ["alfworld-quickstart", "environment.id=gagpo/Program-v0", "--dry-run", "evaluation.splits=[]"]
PROGRAM += ["environment.kwargs={tasks: rows.jsonl, command: 'true'}"]

WRONG = {
    "a sweep and --resume": (["--resume", "runs/x", "seed=1,2"], "--resume continues one run"),
    "a dry run and --resume": (["--resume", "runs/x", "--dry-run"], "takes no --dry-run"),
    "jobs without a sweep": (["alfworld-quickstart", "--jobs", "2"], "list several values in an override"),
    "jobs below one": (["alfworld-quickstart", "seed=1,2", "--jobs", "0"], "must be at least 1"),
    "a wrong value": (["alfworld-quickstart", "seed=1,x"], "override 'seed=x': seed must be an integer"),
    "equal values": (["alfworld-quickstart", "seed=1,01"], "lists a value twice (1 and 01 are the same setting)"),
    "a dry run with a wrong argument": (
        ["alfworld-quickstart", "environment.kwargs.siz=small", "--dry-run"],
        "environment gagpo/ALFWorld-v0: unknown argument 'siz'",
    ),
    "a dry run with a wrong split": (
        ["alfworld-quickstart", "seed=1,2", "evaluation.splits=[test]", "--dry-run"],
        "has no split 'test'; choose one of train,",
    ),
    "a dry run with a missing function": ([*PROGRAM, "environment.kwargs.reward=nowhere:f"], "no module 'nowhere'"),
    "a dry run with another missing function": (
        [*PROGRAM, "environment.kwargs.reward=gagpo.envs.testing:f"],
        "module 'gagpo.envs.testing' has no 'f'",
    ),
    "a missing model": (["alfworld-quickstart", "model=/no/a,/no/b"], "there is no run or model /no/a"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_one_line_and_starts_nothing(inside, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "question": "q"}\n')
    done = inside("train", *words)
    assert done.returncode == 2 and message in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


# Killed and resumed ---------------------------------------------------------------------------------------------------


SECONDS = 1800  # on a machine that is busy with other things


@contextmanager
def sweep(*words):
    """A sweep in a process, which is ended with its runs if the test fails."""
    command = [sys.executable, "-m", "gagpo", "train", *map(str, words)]
    # A program started in the background ignores SIGINT, and its children with it: undo that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(*words):
    """What a sweep prints that runs to its end."""
    with sweep(*words) as process:
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_sweep_that_is_ended_leaves_no_process_and_ends_bit_equal_when_resumed(corridor, tmp_path, number):
    plan = {"training": {"iterations": 12, "save_every": 2}, "rollout": {"workers": 1}, "evaluation": {"tasks": 2}}
    tokens = [corridor(**plan), "seed=1,2", "--jobs", "2"]
    ended, full = tmp_path / "ended", tmp_path / "whole"
    names = ("corridor-seed1", "corridor-seed2")
    with sweep(*tokens, "--runs", ended) as process:
        for name in names:
            wait_for_rows(ended / name / "metrics.jsonl", 3, process, seconds=SECONDS)
        processes = psutil.Process(process.pid).children(recursive=True)
        assert len(processes) >= 4  # two runs, each with a worker
        process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number], output
    deadline = time.monotonic() + 20
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.1)
    if number != signal.SIGKILL:
        assert "2 runs: 2 stopped" in output and "interrupted; continue with: " in output
    assert not any(RunFolder.open(ended / name).finished for name in names)
    finish(*tokens, "--runs", full)
    assert "resumed after iteration" in finish(*tokens, "--runs", ended)
    for name in names:
        require_equal(RunFolder.open(ended / name), RunFolder.open(full / name))
