"""Trackers with the real packages, without a network."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.trackers import TRACKERS, require_trackers, tracking
from tests.rejections import rejects

SETTINGS = {"name": "run", "seed": 1, "optimizer": {"learning_rate": 1e-6}}

OWN = '''
import json
class Lines:
    """A third-party tracker: one file, three methods, no imports from this package."""
    def start(self, run, settings, resume_iteration):
        self.file = (run / "lines.jsonl").open("a")
        self.write("start", settings["name"], resume_iteration)
    def write(self, *row):
        self.file.write(json.dumps(row) + "\\n")
    def log(self, row, step):
        self.write("log", step, sorted(row))
    def close(self):
        self.file.close()
'''


@pytest.fixture
def own(tmp_path, offer):
    (tmp_path / "lines_tracker.py").write_text(OWN)
    offer("lines_tracker", "gagpo.trackers", lines="lines_tracker:Lines")
    return tmp_path


def play(folder, name, resumed=0, steps=(1, 2)):
    folder.mkdir(exist_ok=True)
    with tracking([name], folder, SETTINGS, resumed) as trackers:
        for step in steps:
            trackers.log({"success_rate": 0.1 * step, "note": "x", "kl": float("nan"), "iteration": step}, step)
        assert name in trackers.trackers, "it failed and was left out"


def test_a_tracker_in_one_file_outside_the_repository(own):
    assert TRACKERS.places()["lines"] == "lines_tracker:Lines"
    for name in ("lines", "lines_tracker:Lines"):
        play(own / "run", name, resumed=3, steps=(4,))
    rows = [json.loads(line) for line in (own / "run" / "lines.jsonl").read_text().splitlines()]
    assert rows == [["start", "run", 3], ["log", 4, ["iteration", "success_rate"]]] * 2


def test_unknown_and_missing_trackers_say_what_to_do(own):
    with rejects(InvalidArgument, "'tensorbord'", advice="tensorboard"):
        TRACKERS.find("tensorbord")
    (own / "needy.py").write_text("import no_such_package_at_all")
    with rejects(MissingPackage, advice="pip install no_such_package_at_all"):
        TRACKERS.find("needy:Tracker")
    with rejects(InvalidArgument, "'Line'", where="tracker lines_tracker:Line"):
        TRACKERS.find("lines_tracker:Line")


def test_a_tracker_that_fails_is_dropped_with_a_warning(own):
    (own / "flaky.py").write_text(
        OWN.replace('self.write("log"', "raise OSError('server gone')\n        self.write(\"log\"")
    )
    (own / "run").mkdir()
    warned = pytest.warns(UserWarning, match="flaky:Lines failed and will not be used again: server gone")
    with warned, tracking(["flaky:Lines", "lines"], own / "run", SETTINGS) as trackers:
        trackers.log({"loss": 1.0}, 1)
        assert list(trackers.trackers) == ["lines"]


def test_packages_are_imported_on_demand():
    code = "import sys, gagpo.trackers; print([m for m in ('torch', 'wandb') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_tensorboard_purges_repeated_steps(tmp_path):
    play(tmp_path / "run", "tensorboard", steps=(1, 2, 3))
    play(tmp_path / "run", "tensorboard", resumed=1, steps=(2,))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(Scalar.step, round(Scalar.value, 3)) for Scalar in events.Scalars("success_rate")] == [(1, 0.1), (2, 0.2)]


def test_wandb_resumes_the_same_run(tmp_path):
    """In a process of its own, because the package keeps state."""
    pytest.importorskip("wandb")
    code = (
        "import pathlib, runpy\n"
        f"play = runpy.run_path({str(Path(__file__).resolve())!r})['play']\n"
        f"run = pathlib.Path({str(tmp_path / 'run')!r})\n"
        "play(run, 'wandb')\nplay(run, 'wandb', resumed=2, steps=(3,))\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    reference = {"PYTHONPATH": root, "HOME": str(tmp_path), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **reference},
        check=True,
        timeout=240,
        cwd=root,
        capture_output=True,
    )
    text = (tmp_path / "run" / "wandb-id").read_text()
    folders = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert {folder.name.rsplit("-", 1)[1] for folder in folders} == {text}
    assert all(list(folder.glob("*.wandb")) for folder in folders)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("json:JSONEncoder", "tracker json:JSONEncoder has no method start; add it to the class"),
        (
            "json:decoder",
            "tracker json:decoder is not a tracker; give a class with the methods start, log, close",
        ),
    ],
)
def test_a_class_without_the_methods_is_rejected_before_the_run(place, message):
    with pytest.raises(InvalidArgument) as error:
        require_trackers([place])
    assert str(error.value) == message
