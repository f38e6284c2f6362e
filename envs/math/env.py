"""``gagpo/Math-v0``: a math problem, a calculator, and up to k attempts at the answer."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.base.row_files import checked_columns
from gagpo.envs.base import Kwargs, MarkovKey, Outcome, TextEnv
from gagpo.envs.math import problems
from gagpo.envs.math.calculator import FUNCTIONS, CalculatorError, calculate
from gagpo.envs.math.problems import FIELDS, GeneratedTasks, Problem, worked_answer
from gagpo.envs.math.solutions import (
    CLOSE,
    OPEN,
    SolutionCounts,
    UnusableSolution,
    WorkedSolution,
    require_turns,
    worked_solution,
    written_solution,
)
from gagpo.envs.math.verify.extract import without_thoughts
from gagpo.envs.math.verify.verifier import Verdict, Verifier
from gagpo.envs.tasks import Task, TaskSet

if TYPE_CHECKING:
    from gagpo.envs.math.sources import LoadedProblems

_GENERATED = frozenset({"families", "levels", "size", "test_size"})  # arguments that only concern generated problems


class MathEnv(TextEnv):
    r"""Solve a math problem in several turns; the whole response of the agent is the action.

    A turn is a calculator call such as ``<calc>3 * (4 + 5)</calc>``, or an attempt: a response with a final answer,
    usually ``\boxed{27}``. If a response contains both, the later one counts. Of several calls the first one counts,
    because the text after it was written without its result. The episode ends with the first correct answer, after
    ``attempts`` wrong ones, or after ``max_turns`` turns.

    data: ``"generated"``, a preset, a Hugging Face data set, a file, a folder, or a mapping
        (:func:`gagpo.envs.math.sources.load`).
    columns: names of the data's columns, such as ``{"problem": "Q", "answer": "Solution"}``.
    families, levels: of generated problems.
    size, test_size: generated problems in the training split and in each held-out split. Further problems of a split
        are available by id.
    on_bad_row: ``refuse``, or ``skip`` (and count) rows that cannot be used.
    attempts: wrong answers after which the episode ends.
    tools: offer the calculator. Without it every turn is an attempt; with it a turn without call and answer only costs
        the turn. ``attempts=1, tools=False`` is the single-turn setting.
    expert_mode: ``answer`` (of a data set's problem, the expert gives the answer at once), or ``solution``: it follows
        the data's worked solutions, with a calculator call for each ``<<48/2=24>>``, and gives up on a problem whose
        solution has no calculations or a wrong one (:mod:`gagpo.envs.math.solutions`).

    ``info`` also holds ``verdict`` (of the last attempt), ``answer`` (canonical, for voting), ``attempts_left`` and
    ``calls``.
    """

    splits = problems.SPLITS
    immaterial: ClassVar[frozenset[str]] = TextEnv.immaterial | {"expert_mode"}
    choosing: ClassVar[frozenset[str]] = _GENERATED | {"data", "columns", "on_bad_row"}
    has_imperfect = True
    markov_key: ClassVar[MarkovKey] = "state"

    def __init__(
        self,
        split: str = "train",
        max_turns: int | None = None,
        expert: bool | str = False,
        render_mode: str | None = None,
        data: str | Mapping[str, object] = "generated",
        columns: Mapping[str, str] | None = None,
        families: Sequence[str] | str = "all",
        levels: Sequence[int] | int = (1, 2),
        size: int = 2000,
        test_size: int = 200,
        on_bad_row: Literal["refuse", "skip"] = "refuse",
        attempts: int = 3,
        tools: bool = True,
        expert_mode: Literal["answer", "solution"] = "answer",
    ):
        if attempts < 1:
            raise InvalidArgument(f"attempts must be at least 1, got {attempts}", key="attempts")
        if size < 0 or test_size < 0:
            raise InvalidArgument(f"size and test_size must not be negative, got {size} and {test_size}", key="size")
        if max_turns is None:
            max_turns = attempts + 8 if tools else attempts
        super().__init__(split, max_turns, expert, render_mode)
        self.data = data if isinstance(data, str) else dict(data)
        self.has_own_data = self.data != "generated"
        self.columns = checked_columns(columns, FIELDS)
        if self.columns and self.data == "generated":
            raise InvalidArgument(
                "columns: generated problems have none", key="columns", advice="name a file with data=FILE"
            )
        if expert_mode not in ("answer", "solution"):
            raise InvalidArgument(
                f"expert_mode must be 'answer' or 'solution' (got {expert_mode!r:.80})", key="expert_mode"
            )
        if expert_mode == "solution" and self.data == "generated":
            raise InvalidArgument(
                "expert_mode=solution: generated problems have no such solutions",
                key="expert_mode",
                advice="name data=FILE",
            )
        self.families = problems.check_families(families)
        self.levels = problems.check_levels(levels)
        self.size = size
        self.test_size = test_size
        self.on_bad_row = on_bad_row
        self.attempts = attempts
        self.with_tools = tools
        self.expert_mode = expert_mode
        self.verifier = Verifier()
        self.problem: Problem | None = None
        self._wrong_answers: list[str] = []
        self._results: set[str] = set()
        self._calls = 0
        self._solution: WorkedSolution | None = None
        self._steps_followed = 0
        self._verdict = Verdict("no_answer")

    @property
    def instructions(self) -> str:  # type: ignore[override]
        r"""Description of the actions for an instruction-tuned model; depends on the arguments.

        >>> MathEnv(attempts=1, tools=False).instructions
        'Solve the problem. Work it out step by step and put the final answer in \\boxed{}.'
        """
        if not self.with_tools:
            text = r"Solve the problem. Work it out step by step and put the final answer in \boxed{}."
        else:
            text = (
                "Solve the problem over several turns. In each turn either call the calculator once, for example "
                r"<calc>(3 + 4) * 5 / 2</calc>, and wait for its result, or put the final answer in \boxed{}. "
                f"The calculator knows + - * / ^ mod, brackets, {', '.join(FUNCTIONS)}; its results are exact."
            )
        if self.attempts == 1:
            return text
        return f"{text} You have {self.attempts} attempts at the answer."

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        if kwargs.get("data", "generated") == "generated":
            return frozenset()
        return _GENERATED

    @classmethod
    def preload(cls, **kwargs: Any) -> None:
        """Read the data before the pool forks its workers; reading a large data set takes seconds.

        Where the expert will follow solutions, say how many of them it can follow.
        """
        if kwargs.get("data", "generated") == "generated":
            return
        env = cls(**kwargs)
        env._loaded()
        if env.with_expert and env.expert_mode == "solution":
            logging.getLogger(__name__).warning("%s", env.usable_solutions(env.split))

    def usable_solutions(self, split: str) -> SolutionCounts:
        """How many problems of the data's ``split`` have a solution that the expert can follow.

        Raises: InvalidArgument, if there is none.
        """
        loaded = self._loaded()
        loaded.tasks(split).require()
        counts = loaded.count_solutions(split, self.max_turns, self.with_tools)
        if not counts.usable:
            raise InvalidArgument(str(counts), advice="annotate calculations as <<48/2=24>>, or set expert_mode=answer")
        return counts

    def tasks(self, split: str) -> TaskSet:
        problems.check_split(split)
        if self.data == "generated":
            return _generated(split, self.families, self.levels, self.size if split == "train" else self.test_size)
        return self._loaded().tasks(split)

    def _loaded(self) -> LoadedProblems:
        from gagpo.envs.math.sources import load

        return load(self.data, self.on_bad_row, self.columns)

    def begin(self, task: Task) -> Outcome:
        if self.data == "generated":
            self.problem = problems.by_id(task.id)
        else:
            self.problem = self._loaded().problem(task.id)
        self._wrong_answers = []
        self._results = set()
        self._calls = 0
        self._solution = self._worked_solution(self.problem)
        self._steps_followed = 0
        self._verdict = Verdict("no_answer")
        return self._outcome(self.problem.text)

    def act(self, action: str) -> Outcome:
        assert self.problem is not None
        action = without_thoughts(action)
        answer = self.verifier.extract(self.problem.answer, action)
        call = _first_call(action) if self.with_tools else None
        # An answer before the last call is a guess made before its result was known.
        if call is not None and (answer is None or answer.start < action.rfind(CLOSE)):
            return self._calculate(call)
        if answer is None and self.with_tools:
            self._verdict = Verdict("no_answer")
            return self._outcome("No calculator call and no answer found.", valid=False)
        return self._attempt(action)

    def _calculate(self, expression: str) -> Outcome:
        self._calls += 1
        steps = self._solution.steps[self._steps_followed :] if self._solution else ()
        if steps and expression == steps[0].expression:
            self._steps_followed += 1
        try:
            result = str(calculate(expression))
        except CalculatorError as error:
            return self._outcome(f"Calculator: {error}.", valid=False)
        self._results.add(result)
        return self._outcome(f"Calculator: {result}")

    def _attempt(self, response: str) -> Outcome:
        assert self.problem is not None
        verdict = self.verifier.verify(self.problem.answer, response)
        for alternative in self.problem.alternatives:
            if not verdict.correct:
                verdict = max(verdict, self.verifier.verify(alternative, response), key=lambda other: other.correct)
        self._verdict = verdict
        valid = verdict.reason not in ("no_answer", "unparsable")
        if verdict.correct:
            return self._outcome("Right.", reward=1.0, terminated=True, success=True)
        self._wrong_answers.append(verdict.canonical)
        comment = "No answer found." if verdict.reason == "no_answer" else "Wrong."
        if self._attempts_left <= 0:
            return self._outcome(comment, terminated=True, valid=valid)
        return self._outcome(f"{comment} Attempts left: {self._attempts_left}.", valid=valid)

    @property
    def _attempts_left(self) -> int:
        return self.attempts - len(self._wrong_answers)

    def _outcome(
        self, text: str, reward: float = 0.0, terminated: bool = False, success: bool = False, valid: bool = True
    ) -> Outcome:
        extras = {
            "verdict": self._verdict.reason,
            "answer": self._verdict.canonical,
            "attempts_left": self._attempts_left,
            "calls": self._calls,
        }
        return Outcome(text, reward, terminated, success, valid, self._state(), extras=extras)

    def _state(self) -> str:
        """Key of all that the agent can use: the problem, the computed values, the wrong answers."""
        assert self.problem is not None
        contents = [self.problem.text, sorted(self._results), sorted(self._wrong_answers)]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]

    @property
    def reward_columns(self) -> Mapping[str, object]:
        assert self.problem is not None
        return {"question": self.problem.text, "answer": self.problem.answer}

    def sample_action(self, rng: np.random.Generator) -> str:
        """A small number as the answer, or a sum of two as a call."""
        first, second = (int(number) for number in rng.integers(0, 100, size=2))
        if self.with_tools and rng.random() < 0.5:
            return f"<calc>{first} + {second}</calc>"
        return rf"\boxed{{{first}}}"

    def close(self) -> None:
        self.verifier.close()

    def expert_action(self) -> str | None:
        """The next step of a worked solution as a calculator call, or the boxed answer after the last step.

        With ``expert_mode="solution"`` also the text between the steps of the data's solution; None without a usable
        one. The imperfect expert answers with the value of the first step, and stops when that is wrong.
        """
        problem = self.problem
        assert problem is not None
        if self.imperfect and self._wrong_answers:
            return None
        if self.expert_mode == "solution":
            return self._next_of_solution(problem)
        if self.imperfect:
            first = problem.steps[:1]
            problem = replace(problem, steps=first, answer=first[0][1] if first else problem.answer)
        if not self.with_tools:
            return worked_answer(problem)
        turns_left = self.max_turns - self.turn - 1
        steps = problem.steps[self._calls :]
        if 0 < len(steps) <= turns_left:
            return f"<calc>{steps[0][0]}</calc>"
        return rf"\boxed{{{problem.answer}}}"

    def _worked_solution(self, problem: Problem) -> WorkedSolution | None:
        """What the expert follows in this episode; None if it does not, or cannot."""
        if not self.with_expert or self.expert_mode != "solution":
            return None
        try:
            solution = worked_solution(problem)
            return require_turns(solution, self.max_turns) if self.with_tools else solution
        except UnusableSolution:
            return None

    def _next_of_solution(self, problem: Problem) -> str | None:
        """The turn of the data's worked solution that follows the steps so far."""
        if self._wrong_answers:
            return None
        if not self.with_tools and not self.imperfect:
            return _written_solution(problem)
        if self._solution is None:
            return None
        steps = self._solution.steps[:1] if self.imperfect else self._solution.steps
        if self.with_tools and self._steps_followed < len(steps):
            return steps[self._steps_followed].response
        return rf"\boxed{{{steps[0].value}}}" if self.imperfect else self._solution.conclusion


def _first_call(action: str) -> str | None:
    """The expression of the first complete call, or None; takes time linear in the length of ``action``."""
    end = action.find(CLOSE, action.find(OPEN))
    start = action.rfind(OPEN, 0, end) if end >= 0 else -1
    return action[start + len(OPEN) : end] if start >= 0 else None


def _written_solution(problem: Problem) -> str | None:
    try:
        return written_solution(problem)
    except UnusableSolution:
        return None


@functools.lru_cache(maxsize=64)
def _generated(split: str, families: tuple[str, ...], levels: tuple[int, ...], size: int) -> GeneratedTasks:
    return GeneratedTasks(split, families, levels, size)
