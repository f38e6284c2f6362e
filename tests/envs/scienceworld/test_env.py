"""``gagpo/ScienceWorld-v0``: episodes, the expert, the checks, and training."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gagpo.agents.setup import make_env
from gagpo.base.errors import MissingPackage
from gagpo.envs.check.check import check
from gagpo.envs.lookup import find_spec, markov_key, turn_limit
from tests.rejections import rejects

ANIMAL = {"task_types": "find-animal"}


def test_it_has_a_short_name() -> None:
    assert find_spec("scienceworld") == find_spec("gagpo/ScienceWorld-v0")
    assert markov_key("scienceworld") == "state" and turn_limit("scienceworld", {}) == 200


def test_without_java_it_is_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gagpo.envs.scienceworld.env.simulator_command", lambda: _missing())
    with rejects(MissingPackage, "install a Java runtime"):
        make_env("scienceworld")


def _missing() -> None:
    raise MissingPackage("install a Java runtime")


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
def test_the_expert_solves_a_task_and_has_no_action_off_its_path() -> None:
    with closing(make_env("scienceworld", {**ANIMAL, "expert": True})) as env:
        text, info = env.reset(options={"task": "find-animal-0003"})
        assert text.startswith("Your task is to find") and "You also see:" in text
        total, first = 0.0, info["expert_action"]
        while info["expert_action"] is not None:
            text, reward, terminated, truncated, info = env.step(info["expert_action"])
            total += reward
        assert (terminated, truncated, info["success"], info["score"]) == (True, False, True, 100)
        assert total == pytest.approx(1.0)
        _, info = env.reset(options={"task": "find-animal-0003"})
        start = info["state"]
        text, reward, terminated, _, info = env.step("sing a song")
        assert (info["valid"], terminated, reward, info["state"]) == (False, False, 0.0, start)
        assert info["expert_action"] == first  # nothing has changed
        *_, info = env.step("wait1")
        assert info["expert_action"] is None and info["state"] != start


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
def test_valid_actions_are_listed_on_request_and_change_nothing() -> None:
    with (
        closing(make_env("scienceworld", {**ANIMAL, "admissible": True, "simplifications": ["easy"]})) as listed,
        closing(make_env("scienceworld", {**ANIMAL, "simplifications": "easy"})) as plain,
    ):
        text, info = listed.reset(options={"task": "find-animal-0200"})
        same, other = plain.reset(options={"task": "find-animal-0200"})
        actions = info["admissible_actions"]
        assert text == same and other["admissible_actions"] is None
        assert "look around" in actions and len(set(actions)) == len(actions) > 100
        for action in ("wait1", actions[3], actions[-1]):
            assert listed.step(action)[:4] == plain.step(action)[:4]


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
def test_a_listed_action_is_valid_even_if_the_simulator_does_not_understand_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gagpo.envs.scienceworld.experiment.Experiment.valid_actions", lambda self: ["pick up bee 4"])
    with closing(make_env("scienceworld", {**ANIMAL, "admissible": True})) as env:
        env.reset(options={"task": "find-animal-0000"})
        assert env.step("pick up bee 4")[4]["valid"] and not env.step("pick up bee 5")[4]["valid"]


@pytest.mark.interop
@pytest.mark.usefixtures("installed")
def test_a_wrong_focus_ends_the_episode_with_a_negative_score() -> None:
    with closing(make_env("scienceworld", ANIMAL)) as env:
        env.reset(options={"task": "find-animal-0000"})
        _, reward, terminated, _, info = env.step("focus on agent")
        assert (terminated, info["success"]) == (True, False)
        assert info["score"] == -100 and reward == pytest.approx(-1.0)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_the_checks_pass() -> None:
    kwargs = {"task_types": ["find-animal", "lifespan-longest-lived", "power-component"], "max_turns": 40}
    findings = check("scienceworld", kwargs, episodes=3, deadline=600)
    assert [(finding.name, finding.detail) for finding in findings if not finding.ok] == []


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_small_model_trains_on_it(tmp_path: Path) -> None:
    settings = {
        "name": "stages",
        "model": "model",
        "environment": {
            "id": "scienceworld",
            "kwargs": {"task_types": "identify-life-stages-2", "max_turns": 20, "simplifications": "easy"},
        },
        "rollout": {"tasks": 2, "group_size": 2, "max_tokens": 8, "workers": 1},
        "algorithm": "gagpo",
        "training": {"iterations": 1},
        "evaluation": {"splits": ["dev"], "tasks": 1},
        "sft": {"episodes": 3, "steps": 2, "mistake_rate": 0.0, "model": {"num_layers": 1, "hidden_size": 32}},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "gagpo", "train", "run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs/stages/report.html").is_file()
