"""Locks between processes: one holder, a deadline for the others, free when the holder dies."""

import signal
import subprocess
import sys

import pytest

from gagpo.envs.lock import held

HOLD = """
import sys, time
from pathlib import Path
from gagpo.envs.lock import held

with held(Path(sys.argv[1]), 5):
    print("held", flush=True)
    time.sleep(100)
"""


def test_waiting_for_a_lock_has_an_end_and_is_told_once(tmp_path):
    told = []
    late = pytest.raises(TimeoutError, match="lock: another process has held this lock")
    with held(tmp_path / "lock", 1), late, held(tmp_path / "lock", 0.2, lambda: told.append(1)):
        pass
    assert told == [1]
    with held(tmp_path / "lock", 0.2):
        pass


def test_a_dead_holder_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError), held(tmp_path / "lock", 0.1):
            pass
        process.send_signal(signal.SIGKILL)
        with held(tmp_path / "lock", 20):
            pass
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
