"""The command line in this process."""

import signal
import sys
from types import SimpleNamespace

import pytest
import yaml

from gagpo.cli.main import main
from tests.gagpo.conftest import CORRIDOR


@pytest.fixture(scope="session")
def finished(tmp_path_factory, warm_model):
    """A finished run of two iterations."""
    from gagpo.runs.run_folder import RunFolder
    from gagpo.settings import load
    from gagpo.training.trainer import train

    folder = tmp_path_factory.mktemp("finished")
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**CORRIDOR, "model": warm_model}))
    created = RunFolder.create(folder / "run", load(path))
    train(created, quiet=True)
    return created.path


@pytest.fixture
def inside(monkeypatch, capsys):
    """A function that runs a command and returns its status and what it printed."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gagpo", *map(str, arguments)])
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)

    return call
