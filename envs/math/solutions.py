"""Worked solutions whose calculations are annotated, as calculator calls and the text between them.

The annotation is GSM8K's (Cobbe et al. 2021, arXiv 2110.14168): in ``she made 48/2 = <<48/2=24>>24 cups`` the part in
``<<>>`` is what a calculator is asked, and its result. Every result is computed again; a solution with a wrong one
would demonstrate a calculator that the environment does not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gagpo.base.errors import InvalidArgument
from gagpo.envs.math.calculator import CalculatorError, calculate
from gagpo.envs.math.problems import Problem

MAX_SOLUTION = 20_000
"""Longest solution, in characters."""
OPEN = "<calc>"
CLOSE = "</calc>"
"""The marks of a calculator call in a response."""

# Why a solution is left out of demonstrations.
NO_SOLUTION = "without a worked solution"
NO_CALCULATION = "without calculations in << >>"
UNREADABLE = "with a calculation that the calculator cannot read"
WRONG = "with a result that differs from the calculator's"

_ANNOTATION = re.compile(r"<<([^<>]*)>>")
_ANSWER_LINE = re.compile(r"####[^\n]*\s*\Z")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class UnusableSolution(InvalidArgument):
    """A solution that cannot be demonstrated. reason: one of the constants above, for counting."""

    def __init__(self, reason: str, detail: str = ""):
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


@dataclass(frozen=True)
class SolutionStep:
    """A calculation of a solution.

    text: what is written before it, since the previous one.
    expression, value: as the calculator reads and writes them.
    """

    text: str
    expression: str
    value: str

    @property
    def response(self) -> str:
        """The turn that demonstrates it."""
        return f"{self.text}{OPEN}{self.expression}{CLOSE}"


@dataclass(frozen=True)
class WorkedSolution:
    """A solution as turns.

    steps: the calculations, at least one.
    conclusion: what follows the last one, with the boxed answer.
    """

    steps: tuple[SolutionStep, ...]
    conclusion: str


def worked_solution(problem: Problem) -> WorkedSolution:
    r"""The annotated solution of ``problem``.

    Raises: UnusableSolution, if there is none, or a calculation is missing, unreadable or wrong.

    >>> text = "She made 48/2 = <<48/2=24>>24 cups.\n#### 24"
    >>> worked = worked_solution(Problem("p", "train", "p", "How many cups?", "24", solution=text))
    >>> [step.response for step in worked.steps], worked.conclusion
    (['She made 48/2 = <calc>48/2</calc>'], '24 cups. \\boxed{24}')
    """
    if not problem.solution:
        raise UnusableSolution(NO_SOLUTION)
    text = _ANSWER_LINE.sub("", problem.solution)
    if OPEN in text or CLOSE in text:
        raise UnusableSolution(UNREADABLE, f"the solution contains {OPEN} itself")
    steps = []
    position = 0
    for annotation in _ANNOTATION.finditer(text):
        expression, value = _calculation(annotation[1])
        steps.append(SolutionStep(_single_line(text[position : annotation.start()]), expression, value))
        position = annotation.end()
    if not steps:
        raise UnusableSolution(NO_CALCULATION)
    ending = _single_line(text[position:]).rstrip()
    return WorkedSolution(tuple(steps), f"{ending} {_boxed(problem.answer)}".lstrip())


def written_solution(problem: Problem) -> str:
    """The solution as a single text with the boxed answer, for the setting without a calculator.

    Raises: UnusableSolution, if there is none.
    """
    if not problem.solution:
        raise UnusableSolution(NO_SOLUTION)
    text = _ANNOTATION.sub("", _ANSWER_LINE.sub("", problem.solution))
    return f"{_single_line(text).rstrip()} {_boxed(problem.answer)}".lstrip()


def _calculation(annotation: str) -> tuple[str, str]:
    """The expression of an annotation and the calculator's result for it."""
    expression, equals, written = annotation.rpartition("=")
    if not equals:
        raise UnusableSolution(UNREADABLE, f"<<{annotation[:60]}>> has no =")
    # A comma separates arguments for the calculator, so 1,000 is 1000 there.
    expression = _THOUSANDS.sub("", expression).strip()
    try:
        value = calculate(expression)
        is_right = calculate(_THOUSANDS.sub("", written)) == value
    except CalculatorError as error:
        raise UnusableSolution(UNREADABLE, f"<<{annotation[:60]}>>: {error}") from None
    if not is_right:
        raise UnusableSolution(WRONG, f"<<{annotation[:60]}>> is {str(value)[:40]}")
    return expression, str(value)


def _boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def _single_line(text: str) -> str:
    """``text`` on one line without space at its start, because some prompts read an action of one line."""
    return re.sub(r"\s+", " ", text).lstrip()


# Counts ---------------------------------------------------------------------------------------------------------------


@dataclass
class SolutionCounts:
    """How many problems of a split have a solution that can be demonstrated.

    usable: problems with one.
    left_out: the other problems by reason.
    first: for each reason, the first of them and what is wrong with it.
    """

    split: str
    usable: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All problems of the split."""
        return self.usable + self.left_out.total()

    def __str__(self) -> str:
        text = f"{self.usable:,} of {self.total:,} solutions of the split {self.split} can be demonstrated"
        reasons = [f"{count:,} {reason} (first: {self.first[reason]})" for reason, count in self.left_out.most_common()]
        return f"{text}; left out: {', '.join(reasons)}" if reasons else text


def count_solutions(split: str, problems: Iterable[Problem], max_turns: int, with_tools: bool) -> SolutionCounts:
    """Count the problems with a usable solution.

    max_turns: of an episode; a solution needs a turn for each calculation and one for the answer.
    with_tools: whether there is a calculator; without it a solution needs no calculations.
    """
    counts = SolutionCounts(split)
    for problem in problems:
        try:
            if with_tools:
                require_turns(worked_solution(problem), max_turns)
            else:
                written_solution(problem)
            counts.usable += 1
        except UnusableSolution as error:
            detail = str(error).removeprefix(error.reason).lstrip(": ")
            counts.left_out[error.reason] += 1
            counts.first.setdefault(error.reason, f"{problem.id}{', ' if detail else ''}{detail}")
    return counts


def require_turns(solution: WorkedSolution, max_turns: int) -> WorkedSolution:
    """``solution``, if it fits into ``max_turns``.

    Raises: UnusableSolution.
    """
    if len(solution.steps) >= max_turns:
        raise UnusableSolution(f"with more calculations than max_turns={max_turns} allows")
    return solution
