"""Sweeps whose runs are small programs, started and ended as real runs are."""

import sys

import pytest

from gagpo.settings import load
from gagpo.sweeps import processes
from gagpo.sweeps.capacity import Capacity, Need
from gagpo.sweeps.grid import SweepRun
from gagpo.sweeps.processes import Runner
from gagpo.sweeps.status import status_of


@pytest.fixture
def statuses(corridor, tmp_path):
    """So many runs as they are before a first start."""

    def make(count):
        result = []
        config = load(corridor())
        for number in range(1, count + 1):
            overrides = (f"seed={number}", f"name=run-seed{number}")
            settings = config.model_copy(update={"seed": number, "name": f"run-seed{number}"})
            run = SweepRun("run", overrides, settings, tmp_path / "runs" / settings.name)
            result.append(status_of(run, tmp_path / "logs"))
        return result

    return make


@pytest.fixture
def runner(monkeypatch):
    """A runner whose runs are ``program``, Python source that is given the words of ``gagpo train``."""

    def make(statuses, program, jobs=None, observe=lambda status: None, watch=lambda: None):
        monkeypatch.setattr(
            processes, "module_command", lambda module, parent, *words: [sys.executable, "-c", program, *words]
        )
        return Runner(
            "run.yaml", statuses, [Need(1, 1.0)] * len(statuses), Capacity(9, 99.0, jobs=jobs), observe, watch
        )

    return make
