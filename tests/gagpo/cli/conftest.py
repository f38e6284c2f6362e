"""The command line in this process."""

import signal
import sys
from types import SimpleNamespace

import pytest

from gagpo.cli.main import main


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
