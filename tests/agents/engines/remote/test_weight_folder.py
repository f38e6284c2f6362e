"""Weights pass through memory if it has room, and nothing of a killed run stays there."""

import os
import signal
import subprocess
import sys
from collections import namedtuple

import pytest

from gagpo.agents.engines.remote import weight_folder
from gagpo.agents.engines.remote.weight_folder import (
    HEADROOM,
    WeightFolder,
    parent_of_files,
    remove_leftovers,
)
from gagpo.base.errors import InvalidArgument
from tests.rejections import rejects

Usage = namedtuple("Usage", "free")
KEEPS = """
import sys, time
from pathlib import Path
from gagpo.agents.engines.remote.weight_folder import WeightFolder
folder = WeightFolder(Path(sys.argv[1]))
(folder.path / "0000.safetensors").write_text("weights")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Shared memory and a disk, whose free bytes a test sets by name."""
    free = {"shm": 0, "tmp": 0}
    for name in free:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(weight_folder, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(weight_folder.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(weight_folder.shutil, "disk_usage", lambda path: Usage(free[path.name]))
    monkeypatch.setattr(weight_folder, "available_memory", lambda: 64e9)
    return free


def test_memory_is_used_if_it_has_room(places, tmp_path, caplog):
    places |= {"shm": HEADROOM + 1000, "tmp": 10**12}
    assert parent_of_files(1000) == tmp_path / "shm" and not caplog.messages
    assert parent_of_files(1001) == tmp_path / "tmp"
    (line,) = caplog.messages
    assert "through" in line and "shm has 1.1 GB free, and 1.1 GB are needed" in line


def test_shared_memory_beyond_the_control_groups_limit_is_no_room(places, tmp_path, monkeypatch):
    places |= {"shm": 64 * 10**9, "tmp": 10**12}
    monkeypatch.setattr(weight_folder, "available_memory", lambda: 8e9)
    assert parent_of_files(15 * 10**9) == tmp_path / "tmp"


def test_no_room_anywhere_names_the_option(places):
    places |= {"shm": 0, "tmp": 10**9}
    with rejects(InvalidArgument, "15.2 GB", "0.0 GB", "1.0 GB", advice="engine.options.folder"):
        parent_of_files(15_200_000_000)


def test_a_killed_runs_folder_is_removed_by_the_next_and_a_running_ones_stays(tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", KEEPS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        assert [run.stdout.readline() for run in runs] == ["ready\n"] * 2
        assert len(list(tmp_path.glob("gagpo-weights-*/0000.safetensors"))) == 2
        runs[0].send_signal(signal.SIGKILL)
        runs[0].wait()
        folder = WeightFolder(tmp_path)
        assert len(list(tmp_path.glob("gagpo-weights-*/0000.safetensors"))) == 1
        folder.close()
        folder.close()
        assert not folder.path.exists()
    finally:
        for run in runs:
            run.kill()
            run.wait()
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_users_may_read_a_folder_that_the_user_names_and_no_other(tmp_path):
    private, shared = WeightFolder(tmp_path), WeightFolder(tmp_path / "shared", readable=True)
    modes = [folder.path.stat().st_mode & 0o777 for folder in (private, shared)]
    assert modes == [0o700, 0o755]
    private.close()
    shared.close()


def test_a_file_system_without_locks_is_used_and_not_cleaned(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(weight_folder.fcntl, "flock", no_locks)
    before = len(os.listdir("/proc/self/fd"))
    folder, other = WeightFolder(tmp_path), WeightFolder(tmp_path)
    assert folder.path.exists() and other.path.exists() and len(os.listdir("/proc/self/fd")) == before
    folder.close()
    assert not folder.path.exists() and other.path.exists()
