"""What a run writes and reports."""

import pytest

from gagpo.data import Episode
from gagpo.eval.health import health_line
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.runs import run_folder
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training import events
from gagpo.training.events import EvaluationFinished, FormatsChosen, IterationFinished, WarningIssued
from gagpo.training.trainer import Trainer, train


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A wide terminal, whatever the one is that runs the tests."""
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def reads(monkeypatch):
    """Every time that a run's metrics or settings are read, by the name of the file."""
    results = []

    def counted(name):
        original = getattr(run_folder, name)

        def call(path, *rest, **options):
            results.append(path.name)
            return original(path, *rest, **options)

        monkeypatch.setattr(run_folder, name, call)

    counted("metric_rows")
    counted("load")
    return results


def test_metrics_and_settings_are_read_once_and_a_continued_run_knows_its_past(corridor, tmp_path, reads):
    config = corridor(training={"iterations": 2, "save_every": 1}, evaluation={"tasks": 1})
    train(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    assert reads.count("metrics.jsonl") == 1
    assert reads.count("config.yaml") == 0  # of a new run they are there
    folder = RunFolder.open(tmp_path / "run")
    folder.change(["training.iterations=4"])
    assert folder.settings.training.iterations == 4
    trainer = Trainer(folder, quiet=True)
    del reads[:]
    trainer.run()
    assert reads.count("metrics.jsonl") == 1 and "config.yaml" not in reads
    assert trainer.recorder.rows == folder.metrics() and len(trainer.recorder.rows) == 4


def test_what_is_said_of_a_continued_runs_health_is_about_all_of_it(corridor, tmp_path):
    received = []
    config = corridor(rollout={"group_size": 1}, training={"iterations": 3, "save_every": 1}, evaluation={"tasks": 1})
    train(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    folder = RunFolder.open(tmp_path / "run")
    folder.change(["training.iterations=4"])
    train(folder, report=received.append, quiet=True)
    (line,) = [item.line for item in received if isinstance(item, WarningIssued)]
    assert line == health_line(folder.metrics()) != health_line(folder.metrics()[-1:])


@pytest.mark.parametrize(
    ("training", "labels"),
    [
        ({"iterations": 4, "save_episodes_every": 3}, {"train-0001", "train-0003", "train-0004"}),
        ({"iterations": 9, "max_turns": 1, "save_episodes_every": 3}, {"train-0001"}),
        ({"iterations": 2, "save_episodes_every": 5}, {"train-0001", "train-0002"}),
        ({"iterations": 2, "save_episodes_every": 0}, set()),
    ],
)
def test_the_episodes_of_the_first_and_the_last_iteration_are_kept(corridor, tmp_path, training, labels):
    config = corridor(training=training, evaluation={"splits": []})
    folder = train_folder(config, tmp_path / "run")
    assert {path.stem for path in (folder.path / "episodes").iterdir()} == labels


def test_the_episodes_of_the_newest_iteration_can_always_be_looked_at(corridor, tmp_path):
    config = corridor(training={"iterations": 7, "save_episodes_every": 3}, evaluation={"splits": []})
    folder = RunFolder.create(tmp_path / "run", load(config))
    stored = []

    def look(event):
        if isinstance(event, IterationFinished):
            stored.append([int(path.stem[-4:]) for path in sorted((folder.path / "episodes").iterdir())])

    train(folder, report=look, quiet=True)
    assert stored == [[1], [1, 2], [1, 3], [1, 3, 4], [1, 3, 5], [1, 3, 6], [1, 3, 6, 7]]


def train_folder(config, path):
    folder = RunFolder.create(path, load(config))
    train(folder, quiet=True)
    return folder


def test_what_happens_is_told_in_order_by_kind(corridor, tmp_path):
    received = []
    config = corridor(training={"iterations": 2}, evaluation={"every": 1, "tasks": 1})
    train(RunFolder.create(tmp_path / "run", load(config)), report=received.append, quiet=True)
    reported = [item for item in received if not isinstance(item, WarningIssued)]
    labels = [item.label for item in reported if isinstance(item, EvaluationFinished)]
    assert labels == ["before-test", "iteration-0001-test", "after-test", "average-test"]
    type_names = [type(item) for item in reported]
    once = [EvaluationFinished, IterationFinished]
    assert type_names == [FormatsChosen, *once, *once, EvaluationFinished, EvaluationFinished]
    assert all(str(item) and "\n" not in str(item) for item in received)


def test_an_iteration_in_which_no_row_can_teach_is_reported(corridor, tmp_path):
    received = []
    alone = {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.0}}, "rollout": {"group_size": 1}}
    config = corridor(**alone, training={"iterations": 1}, evaluation={"tasks": 1})
    folder = RunFolder.create(tmp_path / "run", load(config))
    train(folder, report=lambda event: received.append(str(event)), quiet=True)
    (row,) = folder.metrics()
    assert "approx_kl" not in row and "entropy" not in row
    assert row["updates"] == 0 and "grad_norm" not in row
    assert any("zero groups 100 %  " in line and "nothing to learn from" in line for line in received)
    assert not any("nan" in line for line in received)


ROW = {
    "iteration": 12,
    "success_rate": 0.256,
    "mean_turns": 7.25,
    "invalid_rate": 0.031,
    "tokens_per_second": 512.4,
    "seconds_env": 1.25,
    "seconds_generate": 2.0,
    "seconds_train": 3.04,
}
LEARNED = {
    "loss": 0.1,
    "clip_fraction": 0.012,
    "approx_kl": 0.00123,
    "entropy": 0.5,
    "grad_norm": 1.0,
    "zero_advantage_groups": 0.5,
}


@pytest.mark.parametrize("columns", [60, 80, 120, 190])
def test_a_line_fits_the_terminal_and_loses_whole_fields_from_the_right(monkeypatch, columns):
    full = str(IterationFinished(ROW | LEARNED))
    monkeypatch.setenv("COLUMNS", str(columns))
    line = str(IterationFinished(ROW | LEARNED))
    assert len(line) <= columns and full.startswith(line) and (line == full or full[len(line) :].startswith("  "))
    assert len(line) > columns - 25 or line == full


def test_an_iteration_in_one_line():
    assert str(IterationFinished(ROW)) == (
        "  12  success  25.6 %  turns  7.2  invalid  3.1 %  512 tok/s  env 1.2 s  gen 2.0 s  train 3.0 s"
    )
    assert "zero groups  50 %  clip  1.2 %  kl +0.0012  entropy" in str(IterationFinished(ROW | LEARNED))
    unread = {name: value for name, value in LEARNED.items() if name not in ("approx_kl", "entropy")}
    assert "clip  1.2 %  grad 1.00" in str(IterationFinished(ROW | unread))
    assert str(events.WarningIssued("the loss is nan")) == "      the loss is nan"


def test_an_evaluation_says_how_many_episodes_failed_and_why():
    played = [Episode("a", "", "test", success=True), Episode("b", "", "test", outcome="failed")]
    result = EvalResult.from_episodes(played, EvaluatedTaskSet("gagpo/SQL-v0", "test", "0" * 16, 2, 1), "model", 0.4)
    assert "failed" not in str(EvaluationFinished("after-test", result))
    assert "1 of 2 episodes failed, the first: no disk" in str(EvaluationFinished("after-test", result, "no disk"))
