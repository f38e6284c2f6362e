"""A new environment is complete as it is written."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.cli.environments import serve
from gagpo.envs.lookup import UnknownEnvironment
from gagpo.interop.scaffold import new_environment

ROOT = Path(__file__).parents[3]


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            "PYTHONPATH": f"{folder}:{ROOT}",
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_new_env_keeps_its_promises(tmp_path, monkeypatch):
    files = new_environment("moon_base", tmp_path)
    assert [path.name for path in files] == ["moon_base.py", "moon_base.yaml", "test_moon_base.py"]
    assert not any("my_env" in path.read_text() or "MyEnv" in path.read_text() for path in files)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(str(files[2]))["test_moon_base_keeps_its_promises"]()


@pytest.mark.slow
def test_a_new_env_can_be_trained_in_as_it_is(tmp_path):
    new_environment("moon_base", tmp_path)
    for command in ("sft", "train"):
        done = run(tmp_path, "-m", "gagpo", command, "moon_base.yaml", "-q", "training.iterations=2")
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs/moon_base/report.html").is_file()


def test_what_makes_no_sense_is_refused(tmp_path):
    for name in ("Moon", "moon base", "../x", "", "1st"):
        with pytest.raises(InvalidArgument, match="must be a module name"):
            new_environment(name, tmp_path)
    new_environment("moon", tmp_path)
    before = (tmp_path / "moon.py").read_text()
    (tmp_path / "moon.yaml").unlink()
    with pytest.raises(InvalidArgument, match=r"moon\.py exists"):
        new_environment("moon", tmp_path)
    assert not (tmp_path / "moon.yaml").exists() and (tmp_path / "moon.py").read_text() == before


@pytest.mark.parametrize("name", ["json", "os", "numpy", "gagpo", "envs", "class", "torch", "test"])
def test_the_name_of_another_module_is_refused_with_a_suggestion(tmp_path, name):
    with pytest.raises(InvalidArgument, match=rf"^{name} is .*such as {name}_env$"):
        new_environment(name, tmp_path)
    assert not list(tmp_path.iterdir())
    assert new_environment(f"{name}_env", tmp_path)


def test_a_env_that_is_there_already_is_no_installed_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    new_environment("moon", tmp_path)
    with pytest.raises(InvalidArgument, match=r"moon\.py exists"):
        new_environment("moon", tmp_path)


def test_serving_what_is_not_there_is_refused():
    """With OpenEnv installed or without: the one is missing, or the other."""
    with pytest.raises((MissingPackage, UnknownEnvironment), match=r"needs OpenEnv|environment 'gagpo/No-v0'"):
        serve("gagpo/No-v0", port=0, browser=False)
