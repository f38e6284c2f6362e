"""Whole runs on a tiny environment learn, and resume after a kill."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file

from gagpo.algorithms import PRESETS
from gagpo.base import durable
from gagpo.cli.main import app
from gagpo.eval.report.report import has_report, write_report
from gagpo.eval.results import EvalResult
from gagpo.learning.skipped_steps import NonFiniteLoss
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.register import REGISTER
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.training.events import EvaluationFinished
from gagpo.training.launch import new_run
from gagpo.training.trainer import Trainer, train
from tests.rejections import rejects


def run(config, folder, *overrides):
    created = RunFolder.create(folder, load(config, overrides))
    train(created, quiet=True)
    return created


def weights(folder, part="model"):
    """The weights of the last checkpoint, whole or of an adapter; part: model or average."""
    (path,) = (checkpoints.latest(Path(folder) / "checkpoints").path / part).glob("*.safetensors")
    return load_file(path)


def same(a, b):
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def timeless(rows):
    """Metrics without what depends on the clock."""
    clock = ("seconds", "per_second", "busy")
    return [{key: value for key, value in row.items() if not any(word in key for word in clock)} for row in rows]


def test_training_raises_success(corridor, tmp_path):
    config = corridor(training={"iterations": 20, "save_every": 20}, evaluation={"episodes_per_task": 5})
    folder = run(config, tmp_path / "run")
    before, after = (EvalResult.load(folder.path / "evals" / f"{stage}-test.json") for stage in ("before", "after"))
    assert after.success.value >= before.success.value + 0.4
    rows = folder.metrics()
    assert [row["iteration"] for row in rows] == list(range(1, 21))
    success = [row["success_rate"] for row in rows]
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.4
    logged = {
        "mean_turns",
        "invalid_rate",
        "zero_advantage_groups",
        "repeated_states",
        "advantage_std",
        "clip_fraction",
        "approx_kl",
    }
    logged |= {"entropy", "grad_norm", "tokens_per_second", "seconds_env", "seconds_generate", "seconds_train"}
    assert logged <= rows[0].keys() and all(np.isfinite([row[name] for row in rows]).all() for name in logged)


def start(config, runs, *more):
    command = [sys.executable, "-m", "gagpo", "train", *map(str, more), "--runs", str(runs), "-q"]
    if config:
        command.insert(4, str(config))
    # A program started in the background ignores SIGINT, and its children with it: undo that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)


def wait_for_rows(path, count, process, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count("\n") >= count:
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not reach {count} rows")


def test_a_run_killed_in_mid_iteration_ends_bit_equal(corridor, tmp_path):
    config = corridor(training={"iterations": 5, "save_every": 2}, rollout={"workers": 1}, evaluation={"tasks": 2})
    full = run(config, tmp_path / "whole")

    killed = tmp_path / "runs" / "corridor"
    process = start(config, tmp_path / "runs")
    wait_for_rows(killed / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert checkpoints.latest(killed / "checkpoints").iteration < 5

    train(RunFolder.open(killed), quiet=True)
    assert same(weights(killed), weights(full.path))
    assert timeless(RunFolder.open(killed).metrics()) == timeless(full.metrics())
    for stage in ("before", "after"):
        name = f"evals/{stage}-test.json"
        assert EvalResult.load(killed / name).tasks == EvalResult.load(full.path / name).tasks


ADAPTIVE = {"preset": "agpo_adaptive", "controllers": {"agpo": {"probe": 3}}}
VARIANTS = {
    "adaptive": {"algorithm": ADAPTIVE},
    "dapo, adapter": {
        "algorithm": {"preset": "dapo", "controllers": {"dynamic_sampling": {"rounds": 2}}},
        "lora": {"rank": 4, "alpha": 4.0},
    },
    "ppo": {"algorithm": {"preset": "ppo"}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_controllers_critics_adapters_averages_and_positions_are_resumed(corridor, tmp_path, changes):
    from tests.gagpo.training.resuming import killed_after, require_equal

    training = {"iterations": 3, "save_every": 1, "max_checkpoints": 3}
    full = run(corridor(**changes, training=training, evaluation={"tasks": 1}), tmp_path / "whole")
    folder = RunFolder.open(killed_after(1, full, tmp_path))
    train(folder, quiet=True)
    require_equal(folder, full)


# One for each kind of gate, critic and controller; the others differ from these in their credit.
KINDS = {"gagpo", "gmpo", "sapo", "dppo", "starpo_s", "ppo_turn", "agpo_adaptive", "rejection_sampling"}
ALGORITHMS = [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in PRESETS]


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, {"preset": "gagpo", "gate": "none"}], ids=str)
def test_every_preset_trains_and_logs_the_same_metrics(corridor, tmp_path, algorithm):
    folder = tmp_path / "run"
    evaluation = {"tasks": 1, "before": False}
    rollout = {"tasks": 3, "group_size": 4}
    config = corridor(algorithm=algorithm, rollout=rollout, training={"iterations": 1}, evaluation=evaluation)
    (row,) = run(config, folder).metrics()
    if algorithm != "rejection_sampling" or row["success_rate"] > 0:  # it learns nothing from a batch without success
        assert row["updates"] > 0 and 0 <= row["clip_fraction"] <= 1
        assert all(np.isfinite(row[name]) for name in ("loss", "grad_norm", "entropy", "approx_kl"))
    assert row.keys() <= REGISTER.keys(), "every metric stands in gagpo/runs/register.py"


def test_micro_batches_change_nothing_but_memory(corridor, tmp_path):
    ends = []
    for tokens in (40, 100_000):
        training = {"iterations": 1, "minibatches": 3, "microbatch_tokens": tokens}
        folder = run(corridor(training=training), tmp_path / str(tokens))
        ends.append(weights(folder.path))
    for name, value in ends[0].items():
        np.testing.assert_allclose(value.numpy(), ends[1][name].numpy(), atol=2e-3, err_msg=name)


def test_a_poisoned_model_stops_the_run_and_keeps_the_evidence(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr("gagpo.learning.update.MAX_NONFINITE_STEPS", 1)
    folder = RunFolder.create(tmp_path / "run", load(corridor()))
    trainer = Trainer(folder, quiet=True)
    learn = trainer.learner.learn

    def poisoned(episodes, iteration):
        episodes[3].turns[0].logprobs[:] = np.nan
        return learn(episodes, iteration)

    trainer.learner.learn = poisoned
    with rejects(NonFiniteLoss, "iteration 1", "old_logprob", "nonfinite-0001"):
        trainer.run()
    (line,) = (folder.path / "episodes" / "nonfinite-0001.jsonl").read_text().splitlines()
    assert json.loads(line)["sample"] == 3


def test_a_run_folder_is_used_once_and_by_one_process(corridor, tmp_path):
    settings = load(corridor())
    folder = RunFolder.create(tmp_path / "run", settings)
    with rejects(SettingsError, advice="--resume"):
        RunFolder.create(tmp_path / "run", settings)
    with folder.locked(), rejects(SettingsError, "process"), RunFolder.open(folder.path).locked():
        pass
    with rejects(SettingsError, "config"):
        RunFolder.open(tmp_path)


def bytes_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_start_of_a_name_changes_nothing_of_the_first(corridor, tmp_path, monkeypatch):
    config = corridor(training={"iterations": 1})
    first, second, third = (RunFolder.new(tmp_path / "run", load(config, [f"seed={seed}"])) for seed in range(3))
    result, go_on, refusals, compared = threading.Event(), threading.Event(), [], []

    class Slow(Trainer):
        def __init__(self, folder, *more):
            super().__init__(folder, *more)
            if folder is second:  # it has found no run of the name, and is about to write
                result.set()
                assert go_on.wait(300)

    def start_second():
        with pytest.raises(SettingsError) as refusal:
            train(second, quiet=True)
        refusals.append(str(refusal.value))

    def let_it_go_on(event):
        if not compared and isinstance(event, EvaluationFinished):  # in the midst of the first run
            compared.append(bytes_of(tmp_path))
            go_on.set()
            other.join()
            compared.append(bytes_of(tmp_path))

    monkeypatch.setattr("gagpo.training.trainer.Trainer", Slow)
    other = threading.Thread(target=start_second)
    other.start()
    assert result.wait(300)
    train(first, report=let_it_go_on, quiet=True)
    assert compared[0] == compared[1] and compared[0]
    assert len(refusals) == 1 and "another process is writing" in refusals[0]
    done = bytes_of(tmp_path)
    with rejects(SettingsError, "run already", where="run"):
        train(third, quiet=True)
    assert bytes_of(tmp_path) == done
    assert RunFolder.open(tmp_path / "run").settings.seed == 0


def test_a_run_without_evaluations_is_finished_by_its_last_checkpoint(corridor, tmp_path):
    changes = ["evaluation.splits=[]", "training.iterations=2", "training.save_every=1", "name=plain"]
    config = corridor()
    train(new_run(config, changes, tmp_path, auto=True), quiet=True)
    run = RunFolder.open(tmp_path / "plain")
    assert run.finished and new_run(config, changes, tmp_path, auto=True).path.name == "plain-2"
    durable.remove(checkpoints.latest(run.path / "checkpoints").path)
    assert not run.finished  # killed before its last checkpoint was there
    assert new_run(config, changes, tmp_path, auto=True).path == run.path
    train(new_run(config, changes, tmp_path, auto=True), quiet=True)
    assert run.finished and not (tmp_path / "plain-2").exists()
    run.change(["training.iterations=3"])
    assert not run.finished


@pytest.mark.parametrize("splits", ["[test]", "[]"])
@pytest.mark.parametrize("state", ["no report", "report of an unfinished run"])
def test_auto_draws_the_report_of_a_finished_run_and_trains_nothing(corridor, tmp_path, splits, state):
    """The process was killed after its last evaluation and checkpoint."""
    changes = [
        f"evaluation.splits={splits}",
        "training.iterations=1",
        "training.save_every=1",
        "trackers=[]",
        "name=run",
    ]
    config, run = corridor(), tmp_path / "run"
    command = ["train", str(config), *changes, "--runs", str(tmp_path), "--auto", "-q"]
    train(new_run(config, changes, tmp_path), quiet=True)
    if state != "no report":
        write_report(run)
        page = (run / "report.html").read_text()
        (run / "report.html").write_text(page.replace("1 iterations", "0 iterations"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    app(command, standalone_mode=False)
    assert has_report(run) and not (tmp_path / "run-2").exists()
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {"report.html", "curves.png"}
    assert new_run(config, changes, tmp_path, auto=True, reported=True).path.name == "run-2"


def test_unfinished_checkpoints_do_not_count(tmp_path):
    (tmp_path / ".iteration-000009.part").mkdir()
    (tmp_path / "iteration-000003").mkdir()
    (tmp_path / "iteration-x").mkdir()
    assert [saved.iteration for saved in checkpoints.checkpoints(tmp_path)] == [3]


def test_interrupting_says_how_to_go_on_and_leaves_no_process(corridor, tmp_path):
    config = corridor(training={"iterations": 500}, rollout={"workers": 2})
    process = start(config, tmp_path / "runs")
    wait_for_rows(tmp_path / "runs" / "corridor" / "metrics.jsonl", 1, process)
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "continue with: gagpo train --resume" in output and "Traceback" not in output
    _, alive = psutil.wait_procs(children, timeout=20)
    assert children and not alive


@pytest.mark.parametrize("signals", [1, 2])
def test_interrupting_a_save_that_begins_ends_the_run_in_order(corridor, tmp_path, monkeypatch, signals):
    """While a writer is begun it is none that can be waited for: one signal is held, of two the second ends the run."""
    reported = []

    class Interrupted(threading.Thread):
        def start(self):
            while len(reported) < signals:
                reported.append(signal.SIGINT)
                signal.raise_signal(reported[-1])
            super().start()

    monkeypatch.setattr("gagpo.base.background.threading", SimpleNamespace(Thread=Interrupted))
    with pytest.raises(KeyboardInterrupt):
        run(corridor(training={"iterations": 5}), tmp_path / "run")
    monkeypatch.undo()
    assert reported and RunFolder.open(tmp_path / "run").metrics()[-1]["iteration"] == 1
    assert checkpoints.latest(tmp_path / "run" / "checkpoints").iteration == 1
    train(RunFolder.open(tmp_path / "run"), quiet=True)
