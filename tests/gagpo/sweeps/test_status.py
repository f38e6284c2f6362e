"""A sweep needs no state: what its runs have done is read from their folders."""

import json

import pytest

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError, load
from gagpo.sweeps.grid import SweepRun
from gagpo.sweeps.status import last_row, status_of
from tests.rejections import rejects


@pytest.fixture
def sweep_run(corridor, tmp_path):
    def make(*overrides):
        return SweepRun("run", overrides, load(corridor(), overrides), tmp_path / "run")

    return make


@pytest.fixture
def stored(corridor, tmp_path):
    folder = RunFolder.create(tmp_path / "run", load(corridor(), ["threads=1"]))
    folder.log({"iteration": 1, "success_rate": 0.25, "reward_mean": 0.5})
    return folder


def finish(folder):
    folder.log({"iteration": 2, "success_rate": 0.5, "reward_mean": 0.75})
    for stage in ("after", "average"):
        folder.evaluation(f"{stage}-test").write_text("{}")


def test_a_run_that_is_not_there_is_new(sweep_run, tmp_path):
    status = status_of(sweep_run(), tmp_path / "logs")
    assert (status.state, status.changes, status.iteration) == ("waiting", None, 0)
    assert status.log == tmp_path / "logs" / "corridor.log"


def test_a_run_is_resumed_until_it_is_finished(sweep_run, stored, tmp_path):
    status = status_of(sweep_run(), tmp_path)
    assert (status.state, status.changes, status.iteration) == ("waiting", [], 1)
    finish(stored)
    status = status_of(sweep_run(), tmp_path)
    assert (status.state, status.iteration) == ("finished", 2)
    json.dumps(status.record())


def test_a_longer_sweep_extends_finished_runs(sweep_run, stored, tmp_path):
    finish(stored)
    status = status_of(sweep_run("training.iterations=5"), tmp_path)
    assert (status.state, status.changes) == ("waiting", ["training.iterations=5"])


def test_threads_that_a_run_began_with_are_no_difference(sweep_run, stored, tmp_path):
    assert status_of(sweep_run("threads=2"), tmp_path).changes == []


@pytest.mark.parametrize("override", ["optimizer.learning_rate=0.25", "training.iterations=1"])
def test_a_run_with_other_settings_is_not_touched(sweep_run, stored, tmp_path, override):
    key, _, value = override.partition("=")
    with rejects(SettingsError, f"{value} here", key=key):
        status_of(sweep_run(override), tmp_path)


def test_the_last_whole_row_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) is None
    rows = "".join(json.dumps({"iteration": number, "x": "y" * 1000}) + "\n" for number in range(1, 200))
    path.write_text(rows + '{"iteration": 200, "x')  # a process is writing it
    assert last_row(path)["iteration"] == 199
