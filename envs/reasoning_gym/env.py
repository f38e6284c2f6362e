"""Families of reasoning-gym as single-turn environments: ``reasoning_gym:NAME``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.envs.base import MarkovKey, Outcome, TextEnv
from gagpo.envs.math.verify.extract import without_thoughts
from gagpo.envs.plain import SEEDS, seed_ranges
from gagpo.envs.reasoning_gym.problems import (
    GeneratedProblem,
    GenerationFailed,
    ProblemProcess,
    Verdict,
    shared_problems,
    task_sets,
)
from gagpo.envs.tasks import Task, TaskSet

_OPEN = "<answer>"
_CLOSE = "</answer>"


def families() -> list[str]:
    """The names of reasoning-gym's families; imports reasoning-gym.

    A mixture of families (``composite``) is not among them: a run can train on several environments.
    """
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS.keys() - {"composite"})


class ReasoningGymEnv(TextEnv):
    """A problem that a program generates, and one answer to it, scored by the family's own verifier.

    The action is the whole response. The answer is what stands between the last ``<answer>`` and ``</answer>``; without
    them there is none. The reward is the verifier's score from 0 to 1, and 1 is a success. An answer is never
    evaluated. It may use 5 s of CPU time.

    family: its name in reasoning-gym.
    tasks: the seeds of each split as inclusive ranges, by default :data:`gagpo.envs.plain.SEEDS`. A question that
        occurs in a later split, or at an earlier seed of its own split, is left out.
    config: fields of the family's configuration, such as its difficulty.

    ``info`` also holds ``answer`` (for voting), ``score`` and ``verdict``: correct, partial, wrong, no_answer or
    timeout.

    Raises:
        InvalidArgument: an unknown field of the configuration, or values that the family rejects.
    """

    splits: ClassVar[tuple[str, ...]] = ()  # an instance's are those of its tasks
    immaterial = TextEnv.immaterial | {"tasks"}  # the hash of the tasks covers them
    markov_key: ClassVar[MarkovKey] = "state"
    multiline: ClassVar[bool] = True
    checks_arguments: ClassVar[bool] = True  # fields of the family's configuration
    instructions: ClassVar[str] = (
        "Solve the problem. Work it out step by step and put the final answer, and nothing else, between <answer> and "
        "</answer>."
    )

    def __init__(
        self,
        family: str,
        tasks: Mapping[str, object] | None = None,
        split: str | None = None,
        max_turns: int = 1,
        expert: bool | str = False,
        render_mode: str | None = None,
        **config: Any,
    ):
        if max_turns != 1:
            raise InvalidArgument(
                f"max_turns must be 1: a problem of reasoning_gym is one turn (got {max_turns})", key="max_turns"
            )
        self._seeds = seed_ranges(tasks or SEEDS)
        self.splits = tuple(self._seeds)  # type: ignore[misc]
        super().__init__(split or self.splits[0], max_turns, expert, render_mode)
        self.family = family
        config = checked_config(family, config)
        size = max(seeds[-1] for seeds in self._seeds.values()) + 1
        self._shared = shared_problems(family, json.dumps({"seed": 0, **config, "size": size}, sort_keys=True))
        self._tasks: dict[str, TaskSet] = {}
        self._problem = GeneratedProblem("", None)
        self._seed = 0

    def tasks(self, split: str) -> TaskSet:
        if split not in self._seeds:
            raise InvalidArgument(f"unknown split {split!r}", advice=f"choose one of {', '.join(self.splits)}")
        if not self._tasks:
            self._tasks = task_sets(self._problems, self._seeds)
        return self._tasks[split]

    @property
    def _problems(self) -> ProblemProcess:
        return self._shared.take(self)

    def begin(self, task: Task) -> Outcome:
        self._seed = int(task.source)
        self._problem = self._problems.problem(self._seed)
        if self._problem.digest != task.digest:
            raise GenerationFailed(
                f"seed {self._seed} gives another problem than when the tasks were listed",
                where=f"reasoning_gym:{self.family}",
                advice="delete the folder reasoning_gym in $GAGPO_DATA",
            )
        return self._outcome(self._problem.question)

    def act(self, action: str) -> Outcome:
        answer = extract_answer(action)
        if not answer:
            text = f"No answer found between {_OPEN} and {_CLOSE}."
            return self._outcome(text, verdict="no_answer", over=True)
        score, verdict = self._problems.score(self._seed, answer)
        text = "Right." if verdict == "correct" else "Wrong."
        return self._outcome(text, answer, score, verdict, over=True)

    def expert_action(self) -> str | None:
        answer = self._problem.answer
        return None if answer is None else f"{_OPEN}{answer}{_CLOSE}"

    def sample_action(self, rng: np.random.Generator) -> str:
        """The right answer to a random problem of the same family."""
        task = self.tasks(self.splits[0]).draw(rng)
        answer = self._problems.problem(int(task.source)).answer
        return super().sample_action(rng) if answer is None else f"{_OPEN}{answer}{_CLOSE}"

    def close(self) -> None:
        self._shared.release(self)

    def _outcome(
        self, text: str, answer: str = "", score: float = 0.0, verdict: Verdict = "no_answer", over: bool = False
    ) -> Outcome:
        return Outcome(
            text.encode("utf-8", "replace").decode(),
            score,
            terminated=over,
            success=verdict == "correct",
            valid=not over or bool(answer),
            state=f"{self._problem.digest}{':over' if over else ''}",
            extras={"answer": answer, "score": score, "verdict": verdict},
        )


def extract_answer(response: str) -> str:
    """The text between the last ``<answer>`` and ``</answer>`` outside thoughts; empty if there is nothing.

    >>> extract_answer("<think><answer>1</answer></think>So <answer> 2 </answer>."), extract_answer("2")
    ('2', '')
    """
    text = without_thoughts(response).encode("utf-8", "replace").decode()
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, max(end, 0))
    return text[start + len(_OPEN) : end].strip() if 0 <= start < end else ""


def checked_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` if every key is a field of the family's configuration.

    Raises:
        InvalidArgument: an unknown family or key, with the nearest ones.
    """
    from reasoning_gym.factory import DATASETS

    if family not in families():
        raise InvalidArgument(f"unknown family {family!r} of reasoning_gym", advice=hint(family, families()))
    fields = {field.name for field in dataclasses.fields(DATASETS[family][1])} - {"size"}
    for name in config:
        if name == "size":
            raise InvalidArgument(
                "the number of problems is set by tasks, not by size", key="size", where=f"reasoning_gym:{family}"
            )
        if name not in fields:
            raise InvalidArgument(
                f"has no argument {name!r}",
                key=name,
                where=f"reasoning_gym:{family}",
                advice=hint(name, sorted(fields)),
            )
    return dict(config)
