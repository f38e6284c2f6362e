"""The checker passes a correct environment and names the broken promise of each faulty one."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from rich.console import Console

from gagpo.base.errors import MissingPackage
from gagpo.envs.base import Outcome
from gagpo.envs.check.check import check, table
from gagpo.envs.check.promises import PROMISES
from gagpo.envs.pool import WorkerPool
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.testing import CorridorEnv
from tests.rejections import rejects


class LiarEnv(CorridorEnv):
    """A corridor that breaks one promise, named by ``lie``."""

    resets: ClassVar[int] = 0

    def __init__(self, lie: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.lie = lie
        self.markov_key = {"no key": "state", "odd key": "place", "hidden door": "observation"}.get(lie)
        self.closed = False

    def tasks(self, split: str) -> TaskSet:
        tasks = list(super().tasks(split))
        if self.lie == "shared id" and split == "test":
            tasks.append(Task("door-03", "test", digest="new"))
        if self.lie == "shared content" and split == "test":
            tasks.append(Task("door-99", "test", digest="3"))
        if self.lie == "unstable hash":
            tasks.append(Task(f"door-{time.monotonic_ns()}", split, digest=str(time.monotonic_ns())))
        if self.lie == "copied" and split == "test":
            tasks = [
                Task(f"copy-{task.digest}", "test", digest=f"copy of {task.digest}") for task in self.tasks("train")
            ]
        if self.lie == "some copied" and split == "test":
            tasks += [Task(f"copy-{door}", "test", digest=f"copy of {door}") for door in range(2)]
        if self.lie == "no tasks":
            tasks = []
        return TaskSet(split, tasks, advice="Write some.")

    def begin(self, task: Task) -> Outcome:
        if self.lie in ("copied", "some copied"):
            task = replace(task, digest=task.digest.removeprefix("copy of "))
        if self.lie == "another task":
            self.task = self.tasks("train")[self.tasks("train").ids[0]]
        outcome = super().begin(task)
        if self.lie == "history":
            LiarEnv.resets += 1
            outcome.observation += f" Visit {LiarEnv.resets}."
        if self.lie == "solved at once":
            self.door = self.place - 1
        if self.lie == "one beginning":
            outcome.observation = "You stand at the same place as ever."
        return outcome

    def act(self, action: str) -> Outcome:
        outcome = super().act(action)
        if self.lie in ("coarse state", "no key"):
            outcome.state = "somewhere" if self.lie == "coarse state" else None
        if self.lie == "hidden door" and not outcome.terminated:
            outcome.observation = "A corridor."
        if self.lie == "solved at once":
            outcome.terminated = outcome.success = True
        if self.lie == "set order":
            outcome.observation += " ".join({f"mug {i}" for i in range(30)})
        if self.lie == "global random":
            outcome.observation += f" {random.random()}"
        if self.lie == "picky" and not action.isascii():
            raise ValueError("speak English")
        if self.lie == "echo":
            outcome.observation += action
        if self.lie == "invalid admissible":
            outcome.valid = False
        if self.lie == "not JSON":
            outcome.extras["where"] = {1, 2}
        if self.lie == "NaN":
            outcome.extras["where"] = float("nan")
        if self.lie == "slow":
            time.sleep(1000)
        return outcome

    def expert_action(self) -> str:
        return "right" if self.lie == "poor expert" else super().expert_action()

    def reset(self, **kwargs: Any) -> Any:
        if self.lie == "lenient" and (kwargs.get("options") or {}).get("task", "door-00") not in self.tasks("train"):
            kwargs["options"] = {}
        observation, info = super().reset(**kwargs)
        if self.lie == "success as int":
            info["success"] = 0
        if self.lie == "no state":
            del info["state"]
        return observation, info

    def step(self, action: str) -> Any:
        if self.lie == "endless" and self.turn:
            self._over = False
        return super().step(action)

    def close(self) -> None:
        if self.lie == "closed once":
            assert not self.closed
        self.closed = True


gymnasium.register("gagpo-test/Liar-v0", f"{__name__}:LiarEnv", disable_env_checker=True, order_enforce=False)


def complaints(lie: str, **settings: Any) -> dict[str, str]:
    findings = check("gagpo-test/Liar-v0", {"lie": lie}, episodes=3, **settings)
    return {finding.name: finding.detail for finding in findings if not finding.ok}


def test_a_correct_environment_passes_every_check() -> None:
    findings = check("gagpo.envs.testing:gagpo-test/Corridor-v0", episodes=4)
    assert [finding.name for finding in findings] == list(PROMISES)
    assert [finding for finding in findings if not finding.ok] == []
    observed = {finding.name: finding.detail for finding in findings}
    assert "train: 8 tasks" in observed["tasks"]
    assert "solves 4 of 4 tasks" in observed["expert"]
    assert "nearest: " in observed["unknown task"]


def test_an_expert_that_needs_more_turns_than_the_users_limit_is_a_warning() -> None:
    (finding,) = check("gagpo.envs.testing:gagpo-test/Corridor-v0", {"max_turns": 3}, episodes=4, only=["expert"])
    assert finding.ok and finding.warning
    assert "the expert needs more than max_turns=3 turns for" in finding.detail and "raise max_turns" in finding.detail


@pytest.mark.parametrize(
    ("lie", "name", "words"),
    [
        ("shared id", "splits are disjoint", "share 1 tasks, such as 'door-03'"),
        ("shared content", "splits are disjoint", "('door-03', 'door-99')"),
        ("copied", "splits are disjoint", "8 of 8 tasks of test begin like one of 8 of train: success there may be"),
        ("unstable hash", "tasks", "a different hash"),
        ("no tasks", "tasks", "every split is empty. Write some."),
        ("another task", "exact task", "info says ('door-00', 'train')"),
        ("history", "exact task", "starts in two ways"),
        ("set order", "same in every process", "differs in another process"),
        ("global random", "same in every process", "turn 1 differs"),
        ("poor expert", "expert", "does not solve"),
        ("solved at once", "chance", "nothing is left to learn"),
        ("picky", "garbage actions", "other scripts as an action breaks it: ValueError: speak English"),
        ("echo", "garbage actions", "not Unicode"),
        ("invalid admissible", "info", "is called invalid"),
        ("success as int", "info", "info['success'] is int, not bool"),
        ("no state", "info", "no 'state'"),
        ("not JSON", "info", "cannot be written as JSON"),
        ("NaN", "info", "cannot be written as JSON"),
        ("coarse state", "equal states", "at state 'somewhere', 'left' has two results"),
        ("no key", "equal states", "markov_key is 'state', but info has no state"),
        ("odd key", "equal states", "markov_key is 'place', not 'observation' or 'state'"),
        ("hidden door", "equal states", "at observation 'A corridor.'"),
        ("endless", "end of an episode", "instead of raising gymnasium.error.ResetNeeded"),
        ("lenient", "unknown task", "raises no error"),
        ("closed once", "close", "AssertionError"),
    ],
)
def test_a_broken_promise_is_named(lie: str, name: str, words: str) -> None:
    assert words in complaints(lie, only=[name])[name]


def test_a_check_that_hangs_ends_at_its_deadline_and_the_others_still_run() -> None:
    results = complaints("slow", deadline=0.5, only=["chance", "garbage actions", "unknown task"])
    assert "TimeoutError: took more than 0.5 s" in results["chance"]
    assert "more than 0.5 s" in results["garbage actions"]
    assert "unknown task" not in results


def test_an_environment_that_cannot_be_built_is_one_finding() -> None:
    (finding,) = check("gagpo-test/Liar-v0", {"lie": "", "split": "lunch"})
    assert (finding.name, finding.ok) == ("construction", False)
    assert "no split 'lunch'" in finding.detail


def test_an_id_that_is_not_registered_is_an_error() -> None:
    with rejects(ValueError, where="environment 'nowhere/Nothing-v0'"):
        check("nowhere/Nothing-v0")
    with rejects(ValueError, key="episodes"):
        check("gagpo-test/Liar-v0", {"lie": ""}, episodes=0)
    with rejects(ValueError, "chances", advice="construction"):
        check("gagpo-test/Liar-v0", {"lie": ""}, only=["chances"])


def test_the_table_shows_every_finding() -> None:
    findings = check("gagpo-test/Liar-v0", {"lie": "", "split": "[lunch]"})
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(findings))
    text = console.export_text()
    assert "NO" in text and "construction" in text and "[lunch]" in text


def test_the_example_of_the_documentation_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-environment.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(# guess\.py\n.*?)```", page, re.DOTALL)
    assert len(program.splitlines()) <= 30
    (tmp_path / "guess.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert [finding for finding in check("guess:Guess-v0", episodes=4) if not finding.ok] == []
    with WorkerPool("guess:Guess-v0", workers=1) as pool:
        pool.reset(0, "7-6", seed=0)
        pool.wait()
        pool.step(0, "6")
        (event,) = pool.wait()
    assert event.terminated and event.reward == 1.0


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (
            "one beginning",
            "4 of 4 tasks of test begin like one of 8 of train; train has 1 different first observations",
        ),
        ("some copied", "2 of 6 tasks of test begin like one of 8 of train; train has 8 different first observations"),
    ],
)
def test_tasks_of_two_splits_that_begin_alike_are_a_warning(lie: str, words: str) -> None:
    (results,) = check("gagpo-test/Liar-v0", {"lie": lie}, only=["splits are disjoint"])
    assert (results.ok, results.warning, results.verdict) == (True, True, "!")
    assert words in results.detail and "memory of training tasks" in results.detail


def test_different_beginnings_are_no_warning() -> None:
    (usual,) = check("gagpo.envs.testing:gagpo-test/Corridor-v0", only=["splits are disjoint"])
    assert usual.verdict == "ok" and "begin like" not in usual.detail


class UnderstockedEnv(CorridorEnv):
    packages: ClassVar[dict[str, str]] = {"no_such_package": "gagpo[none]"}


class LateUnderstockedEnv(CorridorEnv):
    def __init__(self, **kwargs: Any):
        raise MissingPackage("it needs the package no_such_package")


gymnasium.register("gagpo-test/Understocked-v0", UnderstockedEnv)
gymnasium.register("gagpo-test/LateUnderstocked-v0", LateUnderstockedEnv)


@pytest.mark.parametrize("name", ["Understocked", "LateUnderstocked"])
def test_a_package_that_is_not_installed_is_an_error_and_no_finding(name: str) -> None:
    with rejects(MissingPackage, "no_such_package"):
        check(f"gagpo-test/{name}-v0")


def test_skipped_rows_are_a_warning_about_the_tasks(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {number} + 1?", "answer": number + 1} for number in range(40)]
    path = tmp_path / "sums.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {"problem": "What?"}, rows[0], rows[1]])))
    kwargs = {"data": str(path), "on_bad_row": "skip"}
    (results,) = check("gagpo/Math-v0", kwargs, only=["tasks"])
    assert results.ok and results.warning
    assert f"1 bad rows were skipped; the first: {path}, row 41: no column 'answer'" in results.detail
    assert f"2 rows repeat a problem and were left out; the first: {path}, row 42" in results.detail


@pytest.mark.parametrize(
    ("text", "names"),
    [("Q,Solution\n1+1?,2\n", ("x.csv, row 1", "'problem'", "columns={problem: NAME}")), (None, ("no file",))],
)
def test_data_that_cannot_be_read_is_one_error(tmp_path, text, names):
    if text is not None:
        (tmp_path / "x.csv").write_text(text)
    with rejects(ValueError, *names):
        check("gagpo/Math-v0", {"data": str(tmp_path / "x.csv")})
