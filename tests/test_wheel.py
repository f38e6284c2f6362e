"""The wheel: built, installed into a fresh environment, used from an empty directory."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True, timeout=120)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(copy)]
    subprocess.run(command, check=True, timeout=300)
    return next(folder.glob("gagpo-*.whl"))


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """The ``gagpo`` of a virtual environment that sees this one's libraries, but not the checkout."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, timeout=120)
    Path(site, "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "gagpo"


def test_it_owns_one_name_and_carries_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gagpo"}
    assert "gagpo/envs/base.py" in names and "gagpo/py.typed" in names
    assert "gagpo/configs/alfworld-small.yaml" in names and "gagpo/configs/suites/agents.yaml" in names
    assert "gagpo/interop/templates/environment/my_env.py.txt" in names
    assert not [name for name in names if "/tests/" in name]


def test_train_eval_and_report_in_an_empty_directory(fresh, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GAGPO_DATA": str(tmp_path / "data"), "PYTHONPATH": ""}

    def gagpo(*arguments):
        done = subprocess.run(
            [fresh, *map(str, arguments)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "alfworld-small" in gagpo("list")
    gagpo("new", "mine.yaml", "--like", "math-small")
    small = ["model=model", "sft.steps=3", "sft.episodes=20", "sft.model.num_layers=1"]
    gagpo("sft", "mine.yaml", *small, "-q")
    few = ["training.iterations=1", "rollout.tasks=2", "rollout.group_size=2", "evaluation.tasks=4", "name=run"]
    out = gagpo("train", "mine.yaml", *small, *few, "-q", "--json")
    assert json.loads(out.splitlines()[-1]) and (tmp_path / "runs" / "run" / "report.html").exists()
    gagpo("eval", "runs/run", "--tasks", "4", "--out", "result.json", "-q")
    assert (tmp_path / "result.json").exists()
    gagpo("report", "runs/run")
