"""A new environment is complete as it is written."""

import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.interop.scaffold import new_environment
from tests.rejections import rejects

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


def next_steps(tmp_path, *folder):
    """The files of ``gagpo new moon_base`` are written; the commands that it prints."""
    result = run(tmp_path, "-m", "gagpo", "new", "moon_base", *folder)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].removeprefix("next: ").split("; ")


SHORTER = " name=moon_base sft.episodes=60 sft.steps=20 training.iterations=1 evaluation.episodes_per_task=1 -q"


def shell(folder, commands):
    """Run commands as a user pastes them."""
    gagpo = f'gagpo() {{ {shlex.quote(sys.executable)} -P -m gagpo "$@"; }}'
    lines = [line + SHORTER * line.startswith(("gagpo sft", "gagpo train")) for line in commands]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    return subprocess.run(
        ["bash", "-ec", "\n".join([gagpo, *lines])],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=480,
    )  # fmt: skip


def test_the_first_command_that_a_new_env_prints_works_in_a_folder_with_a_space(tmp_path):
    steps = next_steps(tmp_path, "--folder", "my folder")
    assert steps[0] == "cd 'my folder'" and len(steps) == 4
    done = shell(tmp_path, steps[:2])
    assert done.returncode == 0, done.stderr[-3000:]
    assert next_steps(tmp_path)[0].endswith("gagpo check moon_base:MoonBase-v0")


@pytest.mark.slow
def test_every_command_that_a_new_env_prints_works(tmp_path):
    done = shell(tmp_path, next_steps(tmp_path, "--folder", "my folder"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "my folder/runs/moon_base/report.html").is_file()


def test_what_makes_no_sense_is_refused(tmp_path):
    for name, near in (("Moon", "moon"), ("my-world", "my_world"), ("../x", "x"), ("", None), ("1st", None)):
        with rejects(InvalidArgument, key="name") as caught:
            new_environment(name, tmp_path)
        assert (f", such as {near} (got" if near else "and _ (got") in str(caught.value)
    new_environment("moon", tmp_path)
    before = (tmp_path / "moon.py").read_text()
    (tmp_path / "moon.yaml").unlink()
    with rejects(InvalidArgument, "exists", where="moon.py"):
        new_environment("moon", tmp_path)
    assert not (tmp_path / "moon.yaml").exists() and (tmp_path / "moon.py").read_text() == before


@pytest.mark.parametrize("name", ["json", "os", "numpy", "gagpo", "envs", "class", "torch", "test"])
def test_the_name_of_another_module_is_refused_with_a_suggestion(tmp_path, name):
    with rejects(InvalidArgument, key="name", advice=f"{name}_env"):
        new_environment(name, tmp_path)
    assert not list(tmp_path.iterdir())
    assert new_environment(f"{name}_env", tmp_path)


def test_a_env_that_is_there_already_is_no_installed_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    new_environment("moon", tmp_path)
    with rejects(InvalidArgument, "exists", where="moon.py"):
        new_environment("moon", tmp_path)
