"""Checkpoints are written in the background: from a snapshot, with errors reported, and safe against a kill."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer, train
from tests.rejections import rejects


def test_what_is_written_is_what_was_there_when_it_was_asked_for(corridor, tmp_path, monkeypatch):
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(corridor())), quiet=True)
    go, write = threading.Event(), checkpoints.Saver._write

    def late(*arguments):
        assert go.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoints.Saver, "_write", late)
    before = {name: parameter.detach().clone() for name, parameter in trainer.learner.model.named_parameters()}
    trainer._save()
    with torch.no_grad():
        for parameter in trainer.learner.model.parameters():
            parameter.add_(1.0)
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") is None
    go.set()
    trainer.recorder.saver.wait()
    saved = checkpoints.latest(tmp_path / "run" / "checkpoints")
    saved.verify()
    from gagpo.model.loading import load_model

    after = dict(load_model(saved.model).named_parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_the_next_iteration(corridor, tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", load(corridor(training={"iterations": 30, "save_every": 2})))
    trainer, write = Trainer(folder, quiet=True), checkpoints.Saver._write

    def second_fails(saver, iteration, *rest):
        if iteration == 4:
            monkeypatch.setattr("gagpo.distributed.states.save", full)
        write(saver, iteration, *rest)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.Saver, "_write", second_fails)
    with rejects(CheckpointError, "iteration-000004"):
        trainer.run()
    assert trainer.iteration in (4, 5, 6)
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["iteration-000002"]


KILLED = """
import os, signal, sys
from pathlib import Path
from gagpo.settings import load
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.training.trainer import train
write_on_first = checkpoints._write_on_first
def killed(contents, temporary, ranks):
    if "000002" in temporary.name:
        os.kill(os.getpid(), signal.SIGKILL)
    write_on_first(contents, temporary, ranks)
checkpoints._write_on_first = killed
train(RunFolder.open(Path(sys.argv[1])), quiet=True)
"""


@pytest.mark.slow
def test_a_kill_while_one_is_written_leaves_the_earlier_ones(corridor, tmp_path):
    training = {"iterations": 4, "save_every": 1}
    folder = RunFolder.create(tmp_path / "run", load(corridor(training=training)))
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder.path)], env={**os.environ}, timeout=600)
    assert done.returncode == -signal.SIGKILL
    (retained,) = checkpoints.checkpoints(folder.path / "checkpoints")
    retained.verify()
    assert retained.iteration == 1
    train(RunFolder.open(folder.path), quiet=True)
    assert checkpoints.latest(folder.path / "checkpoints").iteration == 4
    assert not list((folder.path / "checkpoints").glob(".*"))
