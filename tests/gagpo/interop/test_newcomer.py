"""The page for newcomers, done as it says: the file, the config, and every command, in an empty folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import newcomer
from gagpo.eval.results import EvalResult
from gagpo.settings import load

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "your-environment.md").read_text(encoding="utf-8")
SHORTER = ["sft.episodes=60", "sft.steps=20", "training.iterations=1", "evaluation.episodes_per_task=1"]


def block(language, begins):
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text.startswith(begins))


def commands():
    matches = re.findall(r"^PYTHONPATH=\. gagpo (.*guess.*)$", PAGE, re.MULTILINE)
    return [shlex.split(line) for line in matches if "Qwen" not in line]


def run(folder, command, *more):
    done = subprocess.run(
        [sys.executable, "-m", "gagpo", *command, *more],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "guess.py").write_text(block("python", "# guess.py"))
    (tmp_path / "guess.yaml").write_text(block("yaml", "# guess.yaml"))
    return tmp_path


def test_the_page_names_these_commands():
    assert [command[0] for command in commands()] == ["check", "sft", "train", "eval"]
    assert len(block("yaml", "# guess.yaml").splitlines()) <= 14


@pytest.mark.slow
def test_the_page_does_as_it_says(folder):
    for command in commands():
        more = [*SHORTER, "name=guess"] if command[0] in ("sft", "train") else []  # fewer episodes name the folder
        more += ["--out", "chance.json", "--tasks", "10"] if command[0] == "eval" else []
        run(folder, command, *more)
    assert (folder / "runs" / "guess" / "report.html").is_file()
    chance = EvalResult.load(folder / "chance.json")
    assert chance.episodes == 10 and chance.successes < 8


def test_each_env_is_copied_from_its_page(tmp_path):
    for env in newcomer.ENVIRONMENTS_TRIED:
        newcomer.write_env(env, tmp_path)
        assert (tmp_path / f"{env}.py").is_file()
        assert load(tmp_path / f"{env}.yaml").sft.steps is None, "it is left to measure itself"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("env", newcomer.ENVIRONMENTS_TRIED)
def test_the_envs_of_the_pages_visibly_learn(tmp_path, env, seed):
    newcomer.write_env(env, tmp_path)
    row = newcomer.learn(env, seed, tmp_path)
    assert row["after"] - row["before"] >= newcomer.RISE, row
    assert row["sft"]["invalid"] < 0.1, row
