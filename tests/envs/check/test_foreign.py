"""Environments that keep only Gymnasium's contract: what can be judged is, and the rest is said to be open."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium import spaces

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Outcome, Text
from gagpo.envs.check.check import Finding, check, table
from gagpo.envs.tasks import Task
from gagpo.envs.testing import CorridorEnv


class GuessEnv(gymnasium.Env):
    """A foreign world with text for actions: it names no tasks, and its observation is a dict."""

    observation_space = spaces.Dict({"text": Text()})
    action_space = Text()
    made: ClassVar[int] = 0

    def __init__(self, fault: str = ""):
        self.fault = fault
        GuessEnv.made += 1
        self.number = GuessEnv.made

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.secret = int(self.np_random.integers(1000, 9999))
        self.left = 5
        return self._look(), self._info()

    def step(self, action: str) -> Any:
        if self.fault == "picky" and not action.isascii():
            raise ValueError("speak English")
        self.left -= 1
        hit = action == str(self.secret)
        return self._look(), float(hit), hit, self.left == 0, {**self._info(), "success": hit}

    def _look(self) -> dict[str, Any]:
        text = f"Guess a number; {self.left} tries."
        if self.fault == "tells":
            text += f" It is {self.secret}."
        if self.fault == "instance":
            text += f" Room {self.number}."
        if self.fault == "unseeded":
            text += f" It is {random.random()} degrees."
        return {"text": text, "state": self.secret} if self.fault == "field" else {"text": text}

    def _info(self) -> dict[str, Any]:
        return {"answer": self.secret, "success": False}


gymnasium.register("gagpo-test/Guess-v0", f"{__name__}:GuessEnv", disable_env_checker=True, order_enforce=False)

OPEN = {"tasks", "splits are disjoint", "equal states", "put back", "end of an episode", "unknown task"}


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize("form", ["id", "function", "object"])
def test_a_sound_foreign_environment_passes_and_what_is_open_is_named(form: str) -> None:
    given: Any = {"id": "gagpo-test/Guess-v0", "function": GuessEnv, "object": GuessEnv()}[form]
    found = by_name(check(given, episodes=3))
    assert [finding for finding in found.values() if not finding.ok] == []
    assert {name for name, finding in found.items() if not finding.judged} == OPEN
    assert "names its tasks" in found["tasks"].detail
    assert found["exact task"].detail == "3 seeds, twice each, in different order"
    where = "3 processes" if form == "id" else "2 instances; it cannot be built in another process"
    assert where in found["same in every process"].detail
    assert "kinds are answered" in found["garbage actions"].detail
    assert "show neither state key nor answer" in found["nothing leaks"].detail


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("tells", "nothing leaks", "every first observation holds the answer"),
        ("field", "nothing leaks", "the observation has a field ['state']"),
        ("unseeded", "exact task", "starts in two ways"),
        ("instance", "same in every process", "differs in another instance"),
        ("picky", "garbage actions", "other scripts as an action breaks it: ValueError: speak English"),
    ],
)
def test_what_a_foreign_environment_breaks_is_named(fault: str, name: str, words: str) -> None:
    (finding,) = check(lambda: GuessEnv(fault), episodes=3, only=[name])
    assert not finding.ok and words in finding.detail


def test_an_environment_of_numbers_is_judged_as_far_as_that_goes() -> None:
    found = by_name(check("CartPole-v1", episodes=2, only=["exact task", "garbage actions", "chance", "nothing leaks"]))
    assert all(finding.ok for finding in found.values())
    assert found["exact task"].judged
    assert "its actions are no text but Discrete(2)" in found["garbage actions"].detail
    assert "no 'success'" in found["chance"].detail
    assert not found["nothing leaks"].judged
    assert len(table(list(found.values())).rows) == 4


class LeakyEnv(CorridorEnv):
    """A corridor that tells too much."""

    def __init__(self, leak: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.leak = leak

    def begin(self, task: Task) -> Outcome:
        return self._leaking(super().begin(task))

    def act(self, action: str) -> Outcome:
        return self._leaking(super().act(action))

    def _leaking(self, outcome: Outcome) -> Outcome:
        outcome.state = f"corridor:{outcome.state}"
        outcome.admissible_actions = [*(outcome.admissible_actions or []), "up", "down", "wait"]
        if self.leak == "state":
            outcome.observation += f" ({outcome.state})"
        if self.leak == "actions":
            outcome.observation += f" You may: {', '.join(outcome.admissible_actions)}."
        return outcome


@pytest.mark.parametrize(
    ("leak", "words"),
    [("", ""), ("state", "the key of the true state"), ("actions", "lists all 5 admissible actions")],
)
def test_a_world_of_ours_that_tells_too_much_is_named(leak: str, words: str) -> None:
    (finding,) = check(lambda: LeakyEnv(leak), episodes=3, only=["nothing leaks"])
    assert finding.ok == (not leak) and finding.judged
    assert words in finding.detail


def test_an_environment_that_was_handed_over_is_left_open() -> None:
    class Closing(GuessEnv):
        closed = False

        def close(self) -> None:
            self.closed = True

    env = Closing()
    check(env, episodes=1)
    assert not env.closed


def test_arguments_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="env_kwargs belong to an id"):
        check(GuessEnv, {"fault": "picky"})
    with pytest.raises(InvalidArgument, match="an id, an environment or a function"):
        check(42)  # type: ignore[arg-type]
