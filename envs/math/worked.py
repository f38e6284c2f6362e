r"""Worked answers: what the expert writes where there is no calculator to write for it."""

from __future__ import annotations

from gagpo.envs.math.problems import Problem


def worked_answer(problem: Problem) -> str:
    r"""The steps of the solution, one equation each, and the boxed answer; only the answer where no steps are known.

    >>> from gagpo.envs.math.problems import by_id
    >>> worked_answer(by_id("equations-2-train-000003"))
    '-112 + 16 = -96; (-96) / 8 = -12. \\boxed{-12}'
    """
    box = rf"\boxed{{{problem.answer}}}"
    if not problem.steps:
        return box
    return "; ".join(f"{expression} = {value}" for expression, value in problem.steps) + f". {box}"
