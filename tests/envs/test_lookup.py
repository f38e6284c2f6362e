"""Environments are found by id; the working directory is searched last, and only for ids with a module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

from gagpo.base.interpreter import module_path
from gagpo.envs.lookup import find_spec, markov_key
from tests.rejections import rejects

ROOT = Path(__file__).parents[2]
OWN = """
import csv, json, sys
import gymnasium, numpy
from gagpo.envs import Outcome, Task, TaskSet, TextEnv

class Own(TextEnv):
    def tasks(self, split):
        return TaskSet(split, [Task("only", split)] if split == "train" else [])
    def begin(self, task):
        return Outcome(" ".join(module.__file__ for module in (csv, json, numpy, sys.modules["gagpo"])))
    act = begin

gymnasium.register("Own-v0", "own_env:Own")
"""
PROGRAM = """
from gagpo.envs.pool import WorkerPool
with WorkerPool("own_env:Own-v0", workers=1) as pool:
    pool.reset(0, "only", seed=0)
    print(pool.wait()[0].observation)
"""


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named like libraries and parts of this project."""
    for name in ("json", "csv", "matplotlib", "numpy", "marshal", "gagpo", "agents", "envs"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")
    (tmp_path / "own_env.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_the_environment_is_imported_from_the_working_directory(hostile_folder: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert program.returncode == 0, program.stderr
    assert len(program.stdout.split()) == 4
    assert str(hostile_folder) not in program.stdout


def test_the_working_directory_goes_last_where_python_puts_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/one", "two"])
    assert module_path() == ["/one", os.path.abspath("two"), os.getcwd()]


@pytest.mark.parametrize("env_id", ["ALFWorld", "WebShop", "Math", "SQL"])
def test_our_environments_declare_their_state_as_the_markov_key(env_id: str) -> None:
    assert markov_key(f"gagpo/{env_id}-v0") == "state"
    assert markov_key(f"gagpo/{env_id}-v0", {"state": None}) == "state"


def test_without_a_declared_markov_key_the_state_is_used_where_there_is_one() -> None:
    corridor = "gagpo.envs.testing:gagpo-test/Corridor-v0"
    assert markov_key(corridor) == "observation"
    assert markov_key(corridor, {"task": "door-01"}) == "observation"
    assert markov_key(corridor, {"state": None}) == "observation"
    assert markov_key(corridor, {"state": "1>2"}) == "state"
    assert markov_key("CartPole-v1") == "observation"


@pytest.mark.parametrize(
    ("env_id", "given", "idle"),
    [
        (
            "gagpo/ALFWorld-v0",
            {"games": "official"},
            {"size": "full", "seed": 4, "counts": {"train": 9}, "texts": "both"},
        ),
        ("gagpo/Math-v0", {"data": "problems.jsonl"}, {"size": 9, "test_size": 9, "levels": [1], "families": "all"}),
        ("gagpo/SQL-v0", {"data": "spider"}, {"size": 9, "test_size": 9, "types": "all", "seed": 4}),
        ("gagpo/WebShop-v0", {"data": "files"}, {"products": 9}),
    ],
)
def test_arguments_of_generated_tasks_are_not_material_where_tasks_are_given(
    env_id: str, given: dict, idle: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WEBSHOP_DATA", "SQL_DATA"):
        monkeypatch.delenv(variable, raising=False)
    env = load_env_creator(str(find_spec(env_id).entry_point))
    assert env.material(given | idle) == env.material(given)
    assert not idle.keys() & env.material(given).keys()
    assert env.without_effect(given) >= idle.keys() and idle.keys() <= env.choosing
    assert env.without_effect(idle).isdisjoint(idle) and idle.items() <= env.material(idle).items()


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        *((f"{path}:y", "is not the name of a module") for path in ("../x", ".x", "..", "x.", "a..b", "a/b", "/tmp/x")),
        ("nobody_has_this:X-v0", "No module named 'nobody_has_this'"),
        ("broken_env:X-v0", "SyntaxError: "),
        ("failing_env:X-v0", "RuntimeError: no display (failing_env.py, line 1)"),
        ("half_env:Half-v0", "AttributeError: "),
    ],
)
def test_an_id_whose_module_cannot_be_imported_is_one_line(
    env_id: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_env.py").write_text("class :\n")
    (tmp_path / "failing_env.py").write_text("raise RuntimeError('no display\\nset DISPLAY')\n")
    (tmp_path / "half_env.py").write_text("import gymnasium\ngymnasium.register('Half-v0', 'half_env:Missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with rejects(ValueError, reason, where=f"environment '{env_id}'") as error:
        find_spec(env_id)
    assert "\n" not in str(error.value)


OF_TASKS_ONLY = {
    "gagpo/ALFWorld-v0": {"engine"},  # both engines give the same texts, tests/envs/alfworld
    "gagpo/Math-v0": {"expert_mode"},
    "gagpo/WebShop-v0": {"expert_mode"},
    "gagpo/Web-v0": {"screenshots", "grid", "host", "state"},
}


@pytest.mark.parametrize("env_id", [name for name in gymnasium.registry if name.startswith("gagpo/")])
def test_arguments_that_change_observations_actions_or_rewards_are_conditions_of_a_result(env_id: str) -> None:
    env = load_env_creator(str(find_spec(env_id).entry_point))
    assert env.immaterial - {"expert", "render_mode", "split"} == OF_TASKS_ONLY.get(env_id, set())
