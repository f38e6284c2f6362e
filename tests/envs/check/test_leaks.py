"""Observations that contain the state key, the admissible actions or the answer."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from gagpo.envs.base import Outcome
from gagpo.envs.check.check import check
from gagpo.envs.tasks import Task
from gagpo.envs.testing import CorridorEnv


class LeakyEnv(CorridorEnv):
    """A corridor that reveals too much."""

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
        outcome.extras["answer"] = self.task.id if self.task else ""
        if self.leak == "answer":
            outcome.observation += f" It is {outcome.extras['answer']}."
        if self.leak == "actions":
            outcome.observation += f" You may: {', '.join(outcome.admissible_actions)}."
        return outcome


gymnasium.register("gagpo-test/Leaky-v0", f"{__name__}:LeakyEnv", disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        ("", ""),
        ("state", "contains the state key"),
        ("actions", "lists all 5 admissible actions"),
        ("answer", "every first observation contains the answer"),
    ],
)
def test_an_environment_that_leaks_is_named(leak: str, words: str) -> None:
    (finding,) = check("gagpo-test/Leaky-v0", {"leak": leak}, episodes=3, only=["nothing leaks"])
    assert finding.ok == (not leak) and finding.judged
    assert words in finding.detail


def test_an_environment_with_unnamed_actions_fails() -> None:
    (finding,) = check("CartPole-v1", episodes=1)
    assert not finding.ok and "set environment.kwargs.actions" in finding.detail
