"""The tries of an evaluation's tasks: each episode in short, as result files store it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr
from pydantic.dataclasses import dataclass

from gagpo.data import Episode

LONGEST_ANSWER = 200  # characters of an answer that are stored
CHECKED = ConfigDict(allow_inf_nan=False)

Count = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]


@dataclass(frozen=True, config=CHECKED)
class Try:
    """One episode in short. A failed one is never a success.

    invalid: turns without a valid action.
    cut: turns whose response ended at the token limit.
    withheld: turns in which a server gave no answer of the model, because of its filter or a refusal; not in
        ``invalid``.
    answer: canonical final answer, for majority votes; None if it has none, or with one try per task.
    solution: hash of the actions of a success, to count distinct ones; None as for ``answer``.
    """

    success: StrictBool
    reward: Number
    turns: Count
    invalid: Count
    outcome: Literal["terminated", "truncated", "failed"] = "terminated"
    restarts: Count = 0
    cut: Count = 0
    withheld: Count = 0
    answer: StrictStr | None = None
    solution: StrictStr | None = None

    @classmethod
    def of(cls, episode: Episode, several: bool = False) -> Try:
        """An episode in short. several: one of several at its task, so answer and solution are noted."""
        success = bool(episode.success) and episode.outcome != "failed"
        return cls(
            success=success,
            reward=float(episode.reward),
            turns=len(episode.turns),
            invalid=sum(not turn.valid and turn.invalid != "withheld" for turn in episode.turns),
            outcome=episode.outcome,  # type: ignore[arg-type]  # checked
            restarts=int(episode.restarts),
            cut=sum(turn.cut for turn in episode.turns),
            withheld=sum(turn.invalid == "withheld" for turn in episode.turns),
            answer=_answer(episode) if several else None,
            solution=_solution(episode) if several and success else None,
        )

    def record(self) -> dict[str, object]:
        """JSON-ready values, without ``withheld`` if it is 0 and without answer and solution if there is none."""
        optional = {"withheld": 0, "answer": None, "solution": None}
        return {name: value for name, value in asdict(self).items() if name not in optional or value != optional[name]}


def _answer(episode: Episode) -> str | None:
    """The environment's canonical answer; a hash of a long one. The text comes from a model: any characters."""
    answer = episode.info.get("answer")
    text = "" if answer is None else str(answer).strip().encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= LONGEST_ANSWER else _digest(text)) or None


def _solution(episode: Episode) -> str:
    """A hash of the actions that the environment accepted, without differences in white space.

    The action of a turn of several calls consists of its valid calls, even if one of the calls is invalid.
    """
    accepted = [turn.action for turn in episode.turns if turn.valid or (turn.calls and turn.invalid != "refused")]
    return _digest(json.dumps([" ".join(action.split()) for action in accepted if action.strip()]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, config=CHECKED)
class TaskResult:
    """The tries of one task, in order."""

    task: StrictStr
    task_type: StrictStr
    tries: tuple[Try, ...]

    @property
    def successes(self) -> int:
        return sum(attempt.success for attempt in self.tries)

    @property
    def reward_sum(self) -> float:
        """Sum of the rewards of its episodes."""
        return math.fsum(attempt.reward for attempt in self.tries)

    def record(self) -> dict[str, object]:
        """JSON-ready values."""
        tries = [attempt.record() for attempt in self.tries]
        return {"task": self.task, "task_type": self.task_type, "tries": tries}
