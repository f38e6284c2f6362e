"""A new world is complete as it is written; packages offer theirs and cannot break the list."""

import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.envs.errors import InvalidArgument
from gagpo.interop.listing import environments, everything
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


def test_packages_offer_environments(tmp_path, monkeypatch):
    new_world("sea_floor", tmp_path)
    about = tmp_path / "deep-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: deep\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[gagpo.environments]\nSeaFloor-v0 = sea_floor\nNo-v0 = no_such_module\nLost-v0 = sea_floor\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = {one.name: one for one in environments()}
    assert found["gagpo/SQL-v0"].package == "gagpo"
    assert (found["sea_floor:SeaFloor-v0"].package, found["sea_floor:SeaFloor-v0"].problem) == ("deep", "")
    assert "ModuleNotFoundError" in found["no_such_module:No-v0"].problem
    assert "registers no Lost-v0" in found["sea_floor:Lost-v0"].problem


def test_everything_at_hand_is_listed(tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text("{}")
    listed = everything(tmp_path / "runs", tmp_path / "models")
    kinds = {one.kind for one in listed}
    assert kinds == {"environment", "algorithm", "engine", "model"}
    assert {"gagpo", "grpo"} <= {one.name for one in listed if one.kind == "algorithm"}
