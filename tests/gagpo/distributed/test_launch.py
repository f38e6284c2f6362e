"""Runs of several processes from the command line: started by settings or torchrun, killed, interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gagpo.base.rank import REQUIRED
from gagpo.cli.main import app
from gagpo.distributed import launch
from gagpo.distributed.errors import RankLost
from gagpo.distributed.ranks import joined
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.trainer import train
from tests.gagpo.distributed.conftest import GENTLE, require_same_run, write_config
from tests.gagpo.training.resuming import require_equal
from tests.rejections import rejects

SECONDS = 900
DEADLINE = 40  # on a machine that is busy with other things


def gagpo(*words, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )


def config_of(folder, model, **changes):
    short = {"evaluation": {**GENTLE["evaluation"]}, "ranks": {"timeout": DEADLINE}, "processes": 2}
    return write_config(folder, model, **{**short, **changes})


def children_of(process):
    return [child for child in psutil.Process(process.pid).children() if "gagpo" in " ".join(child.cmdline())]


def wait_for_rows(path, count, process):
    deadline = time.monotonic() + SECONDS
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rank(children, number):
    return next(child for child in children if child.environ().get("RANK") == str(number))


def test_tasks_that_do_not_divide_are_refused_in_one_line(tmp_path, warm_model):
    from typer.testing import CliRunner

    config = config_of(tmp_path, warm_model, processes=3)
    outcome = CliRunner().invoke(app, ["train", str(config), "--runs", str(tmp_path / "runs"), "-q"])
    assert isinstance(outcome.exception, SettingsError)
    assert "rollout.tasks=4 cannot be divided over 3 processes" in str(outcome.exception)
    assert not (tmp_path / "runs").exists()


def test_a_launcher_ends_all_with_the_first_that_dies(monkeypatch):
    code = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); time.sleep(99)"
    started, popen = [], subprocess.Popen

    def plain(command, **more):
        started.append(popen([sys.executable, "-c", code], **more))
        return started[-1]

    monkeypatch.setattr(launch.subprocess, "Popen", plain)
    with rejects(launch.RanksEnded, "rank 1 of 2", "signal 9 (SIGKILL)", "--resume"):
        launch.run(2, ["train"])
    assert [process.returncode for process in started] == [-signal.SIGTERM, -signal.SIGKILL]


def test_no_port_is_no_place_to_meet(monkeypatch):
    for name, value in dict(zip(REQUIRED, ("0", "2", "0", "127.0.0.1", "0"), strict=True)).items():
        monkeypatch.setenv(name, value)
    with rejects(RankLost, "MASTER_PORT=0", key="MASTER_PORT", advice="--standalone"), joined():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True], ids=["processes", "torchrun"])
def test_a_run_of_two_is_started_by_either(tmp_path, warm_model, torchrun):
    training = {"iterations": 2, "save_every": 2}
    config = config_of(tmp_path, warm_model, training=training, optimizer=GENTLE["optimizer"])
    tokens = ["gagpo", "train", config, "--runs", tmp_path / "runs", "-q", "--json"]
    if torchrun:
        tokens = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *tokens]
    process = gagpo(*tokens)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert output.count("run folder:") == output.count("report:") == 1
    result = tmp_path / "runs" / "corridor"
    assert (result / "report.html").exists()
    assert "training.unsharded=all" in output and RunFolder.open(result).settings.training.unsharded == "all"
    train(RunFolder.new(tmp_path / "one", load(config)), quiet=True)
    require_same_run(tmp_path / "one", result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "dead"),
    [(signal.SIGKILL, 1), (signal.SIGSTOP, 1), (signal.SIGSTOP, 0)],
    ids=["killed", "stopped", "first"],
)
def test_a_rank_that_dies_ends_the_other_and_the_run_goes_on(tmp_path, warm_model, number, dead):
    config = config_of(tmp_path, warm_model, training={"iterations": 400, "save_every": 1, "max_checkpoints": 3})
    process = gagpo("gagpo", "train", config, "--runs", tmp_path / "runs", "-q", "training.iterations=400")
    result = tmp_path / "runs" / "corridor"
    wait_for_rows(result / "metrics.jsonl", 3, process)
    children = children_of(process)
    every = [*children, *(below for child in children for below in child.children(recursive=True))]
    victim = rank(children, dead)
    os.kill(victim.pid, number)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, output
    assert output.count("gagpo: ") == 1 and "Traceback" not in output
    messages = "was killed by signal 9" if number == signal.SIGKILL else f"has given no sign of life for {DEADLINE} s"
    assert f"rank {dead} of 2 {messages}" in output and "--resume" in output
    assert not psutil.wait_procs(every, timeout=30)[1]
    done = RunFolder.open(result).metrics()[-1]["iteration"]
    latest = checkpoints.latest(result / "checkpoints")
    latest.verify()
    assert latest.iteration >= done - 1
    RunFolder.open(result).change([f"training.iterations={latest.iteration + 1}", "processes=1"])
    train(RunFolder.open(result), quiet=True)
    assert RunFolder.open(result).metrics()[-1]["iteration"] == latest.iteration + 1


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_both(tmp_path, warm_model):
    config = config_of(tmp_path, warm_model, training={"iterations": 400, "save_every": 400})
    process = gagpo("gagpo", "train", config, "--runs", tmp_path / "runs", "-q", start_new_session=True)
    result = tmp_path / "runs" / "corridor"
    wait_for_rows(result / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, output
    assert output.count("continue with: gagpo train --resume") == 1 and "Traceback" not in output
    done = RunFolder.open(result).metrics()[-1]["iteration"]
    assert checkpoints.latest(result / "checkpoints").iteration == done


EVALUATED = {
    "training": {"iterations": 3, "save_every": 100},
    "evaluation": {"every": 1, "before": False, "tasks": 8, "episodes_per_task": 40},
}


@pytest.fixture(scope="module")
def uninterrupted(warm_model, tmp_path_factory):
    """The run that nothing interrupts, also of two: one process rounds differently, so some draws would differ."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    process = gagpo("gagpo", "train", config_of(folder, warm_model, **EVALUATED), "--runs", folder / "runs", "-q")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    return RunFolder.open(folder / "runs" / "corridor")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_both_make_an_evaluation_that_was_interrupted(tmp_path, warm_model, uninterrupted, number):
    config = config_of(tmp_path, warm_model, **EVALUATED)
    command = ["gagpo", "train", config, "--runs", tmp_path / "runs", "-q"]
    process = gagpo(*command, start_new_session=True)
    result = tmp_path / "runs" / "corridor"
    wait_for_rows(result / "metrics.jsonl", 2, process)
    children = children_of(process)
    process.send_signal(number)  # the second evaluation takes longer than the ranks need to get there
    process.communicate(timeout=SECONDS)
    assert process.returncode in (130, 143, -signal.SIGKILL)
    assert not psutil.wait_procs(children, timeout=30)[1]
    if number != signal.SIGKILL:  # the ranks outlive a killed parent for a moment
        assert not (result / "evals" / "iteration-0002-test.json").exists()
    output, _ = gagpo("gagpo", "train", "--resume", result, "-q").communicate(timeout=SECONDS)
    assert (result / "evals" / "iteration-0002-test.json").exists(), output
    require_equal(RunFolder.open(result), uninterrupted)
    for type_name in ("evals", "episodes"):
        texts = [
            {path.name: path.read_text() for path in (run / type_name).iterdir()}
            for run in (result, uninterrupted.path)
        ]
        assert texts[0] == texts[1]
    assert not [path.name for path in result.rglob("*.part")]


@pytest.mark.slow
def test_what_is_wrong_on_both_is_said_once(tmp_path, warm_model):
    context = json.loads((Path(warm_model) / "config.json").read_text())["max_position_embeddings"]
    config = config_of(tmp_path, warm_model, rollout={"max_tokens": context})
    process = gagpo("gagpo", "train", config, "--runs", tmp_path / "runs", "-q")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 2 and output.count(f"gagpo: rollout.max_tokens={context} leaves no room") == 1, output
    assert not (tmp_path / "runs" / "corridor").exists()


@pytest.mark.slow
def test_torchrun_goes_on_with_a_run_whose_rank_was_killed(tmp_path, warm_model):
    training = {"iterations": 8, "save_every": 1}
    config = config_of(tmp_path, warm_model, training=training, evaluation={"splits": [], "before": False})
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "-m"]
    process = gagpo(*torchrun, "gagpo", "train", config, "--auto", "--runs", tmp_path / "runs", "-q")
    result = tmp_path / "runs" / "corridor"
    wait_for_rows(result / "metrics.jsonl", 2, process)
    rank(children_of(process), 1).kill()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert [row["iteration"] for row in RunFolder.open(result).metrics()] == list(range(1, 9))
    assert RunFolder.open(result).finished and [path.name for path in result.parent.iterdir()] == ["corridor"]
