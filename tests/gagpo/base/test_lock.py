"""Work that one process at a time may do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.base import lock


def test_work_that_another_process_does_for_too_long_is_named(tmp_path: Path) -> None:
    held = "import sys, time\nfrom pathlib import Path\nfrom gagpo.base import lock\n"
    held += "with lock.alone(Path(sys.argv[1]), 1, 'making it'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", held, str(tmp_path / "it")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with (
            pytest.raises(TimeoutError, match=r"another process has been making it for 0\.1 s: end it"),
            lock.alone(tmp_path / "it", 0.1, "making it"),
        ):
            pass
        other.kill()
    with lock.alone(tmp_path / "it", 5, "making it"):  # a killed process holds nothing
        pass
