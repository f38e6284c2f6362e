"""A new world is complete as it is written."""

import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.envs.errors import InvalidArgument
from gagpo.interop.scaffold import new_world

ROOT = Path(__file__).parents[3]


def run(folder, *command, timeout=240):
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_new_world_keeps_its_promises(tmp_path):
    files = new_world("moon_base", tmp_path)
    assert [path.name for path in files] == ["moon_base.py", "moon_base.yaml", "test_moon_base.py"]
    assert not any("my_world" in path.read_text() or "MyWorld" in path.read_text() for path in files)
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_moon_base.py")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_a_new_world_can_be_trained_in_as_it_is(tmp_path):
    new_world("moon_base", tmp_path)
    for command in ("warm-start", "train"):
        done = run(tmp_path, "-m", "gagpo", command, "moon_base.yaml", "-q", "training.iterations=2")
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs/moon_base/report.html").is_file()


def test_what_makes_no_sense_is_refused(tmp_path):
    for name in ("Moon", "moon base", "../x", "", "1st"):
        with pytest.raises(InvalidArgument, match="is a module's"):
            new_world(name, tmp_path)
    new_world("moon", tmp_path)
    before = (tmp_path / "moon.py").read_text()
    (tmp_path / "moon.yaml").unlink()
    with pytest.raises(InvalidArgument, match=r"moon\.py exists"):
        new_world("moon", tmp_path)
    assert not (tmp_path / "moon.yaml").exists() and (tmp_path / "moon.py").read_text() == before
