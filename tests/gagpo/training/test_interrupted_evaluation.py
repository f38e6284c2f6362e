"""An evaluation during training that is interrupted is made when the run resumes, which ends as if it never stopped."""

import signal
import subprocess

import pytest

from gagpo.eval.results import EvalResult
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.events import EvaluationFinished, IterationFinished
from gagpo.training.sampler import Sampler
from gagpo.training.trainer import train
from tests.gagpo.training.resuming import require_equal
from tests.gagpo.training.test_trainer import run, start, wait_for_rows

PLAN = {
    "training": {"iterations": 4, "save_every": 100},
    "evaluation": {"splits": ["test", "train"], "every": 1, "before": False, "tasks": 2},
}
RAISED = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


@pytest.fixture(scope="module")
def whole(warm_model, tmp_path_factory):
    """The run that nothing interrupts."""
    import yaml

    from tests.gagpo.conftest import CORRIDOR

    folder = tmp_path_factory.mktemp("whole")
    sections = {name: {**CORRIDOR.get(name, {}), **section} for name, section in PLAN.items()}
    (folder / "run.yaml").write_text(yaml.safe_dump({**CORRIDOR, "model": warm_model, **sections}))
    return run(folder / "run.yaml", folder / "whole")


def evaluations(folder):
    """The text of every result by the name of its file."""
    return {path.name: path.read_text() for path in (folder.path / "evals").iterdir()}


def require_same(folder, whole):
    require_equal(folder, whole)
    assert evaluations(folder) == evaluations(whole)
    assert {path.name for path in (folder.path / "episodes").iterdir()} == {
        path.name for path in (whole.path / "episodes").iterdir()
    }
    assert not [path.name for path in folder.path.rglob("*.part")]


@pytest.mark.parametrize("number", RAISED, ids=lambda number: number.name)
@pytest.mark.parametrize("calls", [(1,), (2,), (3, 4)], ids=["first panel", "second panel", "again when resumed"])
def test_an_interrupted_evaluation_is_made_by_the_resumed_run(corridor, tmp_path, monkeypatch, whole, number, calls):
    """Interrupted in the evaluations with these numbers, counted from the run's first."""
    folder, evaluate, count = RunFolder.create(tmp_path / "run", load(corridor(**PLAN))), Sampler.evaluate, []

    def interrupted(*arguments):
        count.append(1)
        if len(count) in calls:
            signal.raise_signal(number)
        return evaluate(*arguments)

    monkeypatch.setattr(Sampler, "evaluate", interrupted)
    for _ in calls:
        with pytest.raises(RAISED[number]):
            train(RunFolder.open(folder.path), quiet=True)
    assert checkpoints.latest(folder.path / "checkpoints").iteration == (1 if calls[0] < 3 else 2)
    train(RunFolder.open(folder.path), quiet=True)
    require_same(folder, whole)


@pytest.mark.parametrize("event", [IterationFinished, EvaluationFinished])
def test_an_interruption_before_or_between_evaluations_loses_none(corridor, tmp_path, whole, event):
    folder, reported = RunFolder.create(tmp_path / "run", load(corridor(**PLAN))), []

    def report(happened):
        if isinstance(happened, event):
            reported.append(happened)
            if len(reported) == 3:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        train(folder, report=report, quiet=True)
    train(RunFolder.open(folder.path), quiet=True)
    require_same(folder, whole)


def test_a_run_that_lost_evaluations_makes_that_of_its_checkpoint_alone(corridor, tmp_path, whole):
    """As runs of earlier versions did; weights of earlier iterations are gone."""
    plan = {**PLAN, "training": {"iterations": 2, "save_every": 100}}
    folder = run(corridor(**plan), tmp_path / "run")
    for path in (folder.path / "evals").iterdir():
        path.unlink()
    folder = RunFolder.open(folder.path)
    folder.change(["training.iterations=3"])
    train(folder, quiet=True)
    stages = {name.rpartition("-")[0] for name in evaluations(folder)}
    assert stages == {"iteration-0002", "after", "average"}
    assert evaluations(folder)["iteration-0002-test.json"] == evaluations(whole)["iteration-0002-test.json"]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_process_that_ends_in_an_evaluation_ends_bit_equal(corridor, tmp_path, number, ahead):
    plan = {
        "training": {"iterations": 3, "save_every": 1},
        "evaluation": {"every": 1, "before": False, "episodes_per_task": 60},
        "rollout": {"ahead": ahead, "workers": 1},
    }
    config = corridor(**plan)
    full = run(config, tmp_path / "whole")
    result = tmp_path / "runs" / "corridor"
    process = start(config, tmp_path / "runs")
    wait_for_rows(result / "metrics.jsonl", 2, process)
    process.send_signal(number)  # the second evaluation takes longer than the trainer needs to get there
    process.communicate(timeout=60)
    assert process.returncode in (130, 143, -signal.SIGKILL)
    assert not (result / "evals" / "iteration-0002-test.json").exists()
    resumed = start(None, tmp_path / "runs", "--resume", result)
    output, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, output
    folder = RunFolder.open(result)
    if ahead and number != signal.SIGKILL:  # episodes sampled ahead may be sampled again, by newer weights
        assert evaluations(folder).keys() == evaluations(full).keys()
        return
    require_same(folder, full)


def test_what_a_killed_process_has_left_half_written_is_removed(corridor, tmp_path):
    folder = run(corridor(training={"iterations": 1}), tmp_path / "run")
    ended = subprocess.Popen(["true"])
    ended.wait()
    halves = [
        folder.path / f".metrics.jsonl.{ended.pid}.part",
        folder.path / "evals" / f".after-test.json.{ended.pid}.part",
        folder.path / "episodes" / ".train-0001.jsonl.1.part",
    ]
    for path in halves:
        path.write_text("half")
    folders = [folder.path / "checkpoints" / name for name in (".iteration-000002.part", ".iteration-000001.7.old")]
    for path in folders:
        path.mkdir()
        (path / "half").write_text("half")
    writing = folder.path / ".report.html.1.part"  # of a process that lives
    writing.write_text("half")
    train(RunFolder.open(folder.path), quiet=True)  # it is finished: nothing is written again
    assert [path for path in folder.path.rglob("*") if path.name.endswith((".part", ".old"))] == [writing]
    assert EvalResult.load(folder.path / "evals" / "after-test.json").episodes
