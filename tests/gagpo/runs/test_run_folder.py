"""The run folder: damaged metrics are skipped and kept, and extended runs keep their history."""

import logging

import pytest

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from tests.rejections import rejects

DAMAGED = ["[1, 2]", "null", '{"iteration": "x"}', "[" * 100_000, '{"iteration": 1', "\x00"]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_row_is_kept_aside_and_named_in_one_line(tmp_path, line, caplog):
    folder = RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n' + line + '\n{"iteration": 2}\n')
    assert folder.metrics() == [{"iteration": 1}, {"iteration": 2}]
    with caplog.at_level(logging.WARNING, "gagpo"):
        folder.rewind(1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"iteration": 1}\n'
    assert (tmp_path / "metrics.damaged.jsonl").read_text() == line + "\n"
    (messages,) = (record.getMessage() for record in caplog.records)
    assert "damaged lines (1), kept in metrics.damaged.jsonl" in messages and "\n" not in messages


def test_a_sound_file_leaves_nothing_aside(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n')
    RunFolder(tmp_path).rewind(1)
    assert not (tmp_path / "metrics.damaged.jsonl").exists()


def test_what_a_resumed_run_repeats_is_removed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n')
    for name in ("evals/iteration-0001-test.json", "evals/iteration-0002-test.json", "evals/before-test.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "episodes").mkdir()
    for name in ("train-0001", "train-0002", "train-mine", "before-test"):
        (tmp_path / "episodes" / f"{name}.jsonl").write_text("")
    RunFolder(tmp_path).rewind(1)
    assert sorted(path.stem for path in tmp_path.glob("e*/*")) == [
        "before-test", "before-test", "iteration-0001-test", "train-0001", "train-mine",
    ]  # fmt: skip


def test_a_run_is_not_made_shorter_than_it_is(corridor, tmp_path):
    folder = RunFolder.create(tmp_path / "run", load(corridor(training={"iterations": 40})))
    for iteration in (1, 2, 3):
        folder.log({"iteration": iteration})
    before = (folder.path / "config.yaml").read_text()
    with rejects(SettingsError, key="training.iterations"):
        folder.change(["training.iterations=2"])
    assert (folder.path / "config.yaml").read_text() == before
    folder.change(["training.iterations=3"])
    assert RunFolder.open(folder.path).settings.training.iterations == 3
