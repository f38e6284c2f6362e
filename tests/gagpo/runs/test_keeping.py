"""The last checkpoints and the best one are kept, and a checkpoint needs enough disk space."""

import signal
from collections import namedtuple

import pytest
import torch

from gagpo.eval.models import evaluate
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs import disk_space, keeping
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.keeping import find_checkpoint
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, TrainingSettings, load
from gagpo.training.export import export
from gagpo.training.trainer import Trainer
from tests.rejections import rejects

Usage = namedtuple("Usage", "total used free")


def rows(*values):
    return [{"iteration": i + 1, "success_rate": value} for i, value in enumerate(values)]


def test_the_criterion_is_a_mean_of_the_last_iterations():
    smoothed = keeping.smoothed(rows(0.0, 0.6, 0.3, float("nan"), 0.9), "success_rate", 3)
    assert smoothed == pytest.approx({1: 0.0, 2: 0.3, 3: 0.3, 4: 0.45, 5: 0.6})
    assert keeping.smoothed(rows(0.5), "reward_mean", 3) == {}


@pytest.mark.parametrize(("over", "best"), [(1, 2), (3, 4)])
def test_one_lucky_iteration_is_not_the_best_where_the_mean_is_over_more(over, best, monkeypatch):
    monkeypatch.setattr(keeping, "BEST_OVER", over)
    assert keeping.best_of([1, 2, 3, 4], rows(0.0, 0.9, 0.5, 0.6), TrainingSettings()) == best


def test_the_later_of_equals_is_the_best_and_only_what_is_there_counts(monkeypatch):
    monkeypatch.setattr(keeping, "BEST_OVER", 1)
    training = TrainingSettings()
    assert keeping.best_of([1, 2, 3], rows(0.5, 0.5, 0.1), training) == 2
    assert keeping.best_of([1, 3], rows(0.5, 0.9, 0.1), training) == 1
    assert keeping.best_of([], rows(0.5), training) is None
    assert keeping.best_of([1], rows(0.5), TrainingSettings(best_metric=None)) is None


def scripted(config, folder, rates, stop_after=None, **options):
    """A finished run whose success rates are those given, or one that a signal stops."""
    run = RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, load(config))
    trainer = Trainer(run, quiet=True, **options)
    record = trainer.recorder.iteration

    def scripted(metrics, *remaining):
        record({**metrics, "success_rate": rates[int(metrics["iteration"]) - 1]}, *remaining)
        if metrics["iteration"] == stop_after:
            signal.raise_signal(signal.SIGTERM)

    trainer.recorder.iteration = scripted
    trainer.run()
    return trainer.folder.path


def test_the_best_checkpoint_stays_beside_the_last_and_is_evaluated_and_exported(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "BEST_OVER", 1)
    training = {"iterations": 5, "max_checkpoints": 1}
    config = corridor(training=training, evaluation={"before": False, "tasks": 1})
    run = scripted(config, tmp_path / "run", [0.1, 0.8, 0.3, 0.7, 0.2])
    assert [checkpoint.iteration for checkpoint in checkpoints.checkpoints(run / "checkpoints")] == [2, 5]
    result = evaluate(f"{run}@best", tasks=1, workers=0, quiet=True)
    assert result.model == f"{run}@best, iteration 2"
    export(f"{tmp_path}/run@best", tmp_path / "exported")
    best = checkpoints.checkpoints(run / "checkpoints")[0].path / "model" / "model.safetensors"
    assert (tmp_path / "exported" / "model.safetensors").read_bytes() == best.read_bytes()
    with rejects(SettingsError, "iteration 3", advice="[2, 5]"):
        evaluate(f"{run}@3", tasks=1, workers=0, quiet=True)


@pytest.mark.parametrize("interrupted_after", [(1,), (4, 5), (3, 7)])
def test_an_interrupted_run_ends_with_the_checkpoints_of_another(corridor, tmp_path, monkeypatch, interrupted_after):
    """The checkpoints that interruptions write are the best of all, by the metric."""
    monkeypatch.setattr(keeping, "BEST_OVER", 1)
    rates = [0.8, 0.1, 0.5, 0.9, 0.9, 0.4, 0.9, 0.3]
    training = {"iterations": 8, "save_every": 3, "max_checkpoints": 1, "ema": False}
    config = corridor(training=training, evaluation={"splits": []})
    for done in interrupted_after:
        with pytest.raises(SystemExit):
            scripted(config, tmp_path / "run", rates, stop_after=done)
        assert checkpoints.latest(tmp_path / "run" / "checkpoints").iteration == done
        assert find_checkpoint(tmp_path / "run", "best", TrainingSettings(**training)).iteration in (done, 3)
    scripted(config, tmp_path / "run", rates)
    assert [saved.iteration for saved in checkpoints.checkpoints(tmp_path / "run" / "checkpoints")] == [3, 8]
    assert find_checkpoint(tmp_path / "run", "best", TrainingSettings(**training)).iteration == 3


def test_the_last_iteration_by_turns_is_planned():
    training = TrainingSettings(iterations=100, save_every=3, max_turns=50)
    totals = [{"iteration": i, "turns_total": 10.0 * i} for i in range(1, 6)]
    assert keeping.planned_of([1, 3, 4, 5], totals, training) == [3, 5]
    assert keeping.planned_of([10, 4], [], TrainingSettings(iterations=10, save_every=3)) == [10]
    assert keeping.planned_of([10, 12], [], TrainingSettings(iterations=20, save_every=3)) == [12]  # extended


def test_without_a_criterion_there_is_no_best(corridor, tmp_path):
    training = {"iterations": 2, "max_checkpoints": 1, "best_metric": None}
    run = scripted(corridor(training=training, evaluation={"before": False, "tasks": 1}), tmp_path / "run", [0.9, 0.1])
    assert [checkpoint.iteration for checkpoint in checkpoints.checkpoints(run / "checkpoints")] == [2]
    with rejects(SettingsError, key="training.best_metric"):
        evaluate(f"{run}@best", tasks=1, workers=0, quiet=True)


def test_the_size_is_that_of_the_files(corridor, tmp_path):
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(corridor())), quiet=True)
    learner = trainer.learner
    before = disk_space.checkpoint_bytes(learner.entries)
    for parameter in learner.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.optimizer.step()
    trainer._save()
    trainer.recorder.saver.wait()
    files = checkpoints.latest(tmp_path / "run" / "checkpoints").path.rglob("*")
    written = sum(path.stat().st_size for path in files if path.is_file())
    assert abs(before - disk_space.SMALL_FILES - written) < 200_000  # tokenizer, headers
    assert abs(disk_space.checkpoint_bytes(learner.entries) - before) < 1000  # the counts of steps


def test_a_run_that_the_disk_cannot_hold_is_not_begun(corridor, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: Usage(10**9, 0, 20_000_000))
    folder = RunFolder.new(tmp_path / "run", load(corridor(training={"iterations": 9})))
    with rejects(CheckpointError, "4 checkpoints", "0.02 GB", "training.max_checkpoints"):
        Trainer(folder, quiet=True)
    assert not folder.path.exists()


def test_a_checkpoint_that_has_no_room_is_not_begun_and_the_earlier_ones_stand(corridor, tmp_path, monkeypatch):
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(corridor(training={"iterations": 3}))), quiet=True)
    save = trainer._save

    def full():
        if trainer.iteration == 2:
            monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: Usage(10**9, 0, 1_000_000))
        save()

    trainer._save = full
    with rejects(CheckpointError, "a checkpoint", "0.001 GB"):
        trainer.run()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["iteration-000001"]


def test_a_start_that_was_killed_before_it_was_a_run_is_begun_again(corridor, tmp_path, monkeypatch):
    """After the lock, the folders and the versions, before the settings; what is anybody else's stays refused."""
    path, settings = tmp_path / "run", load(corridor())

    def killed(name, text):
        if name.name == "config.yaml":
            raise KeyboardInterrupt
        name.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr("gagpo.runs.run_folder.durable.write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.create(path, settings)
    assert (path / "versions.json").exists() and not (path / "config.yaml").exists()
    RunFolder.new(path, settings)
    (path / "evals" / "notes.txt").write_text("mine")
    with rejects(SettingsError, "other files", advice="name="):
        RunFolder.new(path, settings)
