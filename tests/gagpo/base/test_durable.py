"""A replaced file is the old or the new one, never half of one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.base import durable

KILLED = """
import os, signal, sys
from pathlib import Path
from gagpo.base import durable
with durable.replacing_folder(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("flushed", [True, False])
def test_a_file_is_replaced_at_the_end_or_stays(tmp_path: Path, flushed: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), durable.replacing(path, flushed) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert [item.read_text() for item in tmp_path.iterdir()] == ["old"]
    with durable.replacing(path, flushed) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert [item.read_text() for item in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_folder_is_replaced_at_the_end_or_stays(tmp_path: Path, flushed: bool) -> None:
    location = tmp_path / "above" / "new"
    with pytest.raises(RuntimeError), durable.replacing_folder(location, flushed) as folder:
        (folder / "file").write_text("half")
        raise RuntimeError
    assert list(location.parent.iterdir()) == []
    for text in ("old", "new"):
        with durable.replacing_folder(location, flushed) as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / "file").write_text(text)
            assert location.exists() == (text == "new")
        assert (location / "inner" / "file").read_text() == text
    assert list(location.parent.iterdir()) == [location] and location.stat().st_mode & 0o777 == 0o755


def test_a_kill_leaves_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "file").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "place")], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "place" / "file").read_text() == "old"
    assert all(
        path.name.startswith(".") and path.suffix == ".part" for path in tmp_path.iterdir() if path.name != "place"
    )
