"""Generated problems: unlimited seeded tasks whose splits cannot overlap.

The split of a problem is a hash of its numbers and signs, in order. Problems that are equal, or that differ only in
phrasing or names, are therefore always in the same split.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument
from gagpo.envs.division import split_of
from gagpo.envs.math.calculator import calculate
from gagpo.envs.math.families import FAMILIES, LEVELS
from gagpo.envs.tasks import Task, TaskSet, UnknownTask

SPLITS = ("train", "validation", "test")
FIELDS = ("problem", "answer", "solution", "choices", "passage", "type", "split")
"""What a column of a data set can hold."""

_CONTENT = re.compile(r"\d+|[-+*/^=()]")
_ID = re.compile(rf"({'|'.join(FAMILIES)})-([{LEVELS[0]}-{LEVELS[-1]}])-({'|'.join(SPLITS)})-(\d{{6,9}})", re.ASCII)


def check_split(split: str) -> None:
    """Raise InvalidArgument for an unknown split."""
    if split not in SPLITS:
        raise InvalidArgument(f"no split {split!r}", advice=f"choose one of {', '.join(SPLITS)}")


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer.

    steps: (expression, value) pairs of a generated problem's solution; empty if unknown.
    solution: the text of a data set's worked solution; empty if it has none.
    alternatives: further answers that are right as well.
    """

    id: str
    split: str
    type: str
    text: str
    answer: str
    steps: tuple[tuple[str, str], ...] = ()
    solution: str = ""
    alternatives: tuple[str, ...] = ()

    def task(self) -> Task:
        content = "\0".join((self.text, self.answer, *self.alternatives))
        generated = _ID.fullmatch(self.id)
        level = int(generated[2]) if generated else 0
        return Task(self.id, self.split, self.type, hashlib.sha256(content.encode()).hexdigest()[:16], level=level)


def worked_answer(problem: Problem) -> str:
    r"""The steps of the solution, one equation each, and the boxed answer.

    >>> worked_answer(by_id("equations-2-train-000003"))
    '-112 + 16 = -96; (-96) / 8 = -12. \\boxed{-12}'
    """
    steps = "; ".join(f"{expression} = {value}" for expression, value in problem.steps)
    return (f"{steps}. " if steps else "") + rf"\boxed{{{problem.answer}}}"


def content_key(text: str) -> str:
    """The numbers and signs of a problem, in order, without names and phrasing.

    >>> content_key("What is 3 + 4?") == content_key("Compute 3 + 4.")
    True
    """
    return " ".join(_CONTENT.findall(text))


@functools.lru_cache(maxsize=16_384)
def generate(family: str, level: int, split: str, index: int) -> Problem:
    """Problem number ``index`` of a family, level and split; the same on every machine."""
    # Drawn again until the content falls into the split: one in ten does for test and validation.
    rng = random.Random(f"{family}/{level}/{split}/{index}")
    while True:
        text, expressions = FAMILIES[family](rng, level)
        if split_of(content_key(text)) == split:
            break
    steps = tuple((expression, str(calculate(expression))) for expression in expressions)
    return Problem(f"{family}-{level}-{split}-{index:06d}", split, family, text, steps[-1][1], steps)


def by_id(task_id: str) -> Problem:
    """The generated problem with this id; raises :class:`UnknownTask` for an invalid one."""
    match = _ID.fullmatch(task_id)
    if match is None:
        raise UnknownTask(
            f"no generated problem {task_id[:80]!r}",
            advice=(
                f"ids look like arithmetic-1-train-000017 (families {', '.join(FAMILIES)}; levels {LEVELS[0]} to "
                f"{LEVELS[-1]}; splits {', '.join(SPLITS)})"
            ),
        )
    return generate(match[1], int(match[2]), match[3], int(match[4]))


class GeneratedTasks(TaskSet):
    """A finite set of generated problems that also accepts ids of all further problems of its split.

    It lists ``size`` problems, spread evenly over families and levels, without equal content; fewer where a small
    family runs out (two operands up to 20 make a few hundred problems).
    """

    def __init__(self, split: str, families: Sequence[str], levels: Sequence[int], size: int):
        check_split(split)
        pairs = [(family, level) for family in families for level in levels]
        tasks: list[Task] = []
        for number, (family, level) in enumerate(pairs):
            quota = size * (number + 1) // len(pairs) - size * number // len(pairs)
            tasks += [problem.task() for problem in _distinct(family, level, split, quota)]
        super().__init__(split, tasks, advice="Raise the number of tasks, or name more families and levels.")

    def __contains__(self, task_id: object) -> bool:
        if super().__contains__(task_id):
            return True
        match = _ID.fullmatch(task_id) if isinstance(task_id, str) else None
        return match is not None and match[3] == self.split

    def __getitem__(self, task_id: str) -> Task:
        if super().__contains__(task_id) or task_id not in self:
            return super().__getitem__(task_id)
        return by_id(task_id).task()


def _distinct(family: str, level: int, split: str, count: int) -> list[Problem]:
    """The first ``count`` problems with different content; fewer when new ones become rare."""
    problems: dict[str, Problem] = {}
    index = newest = 0
    while len(problems) < count and index - newest <= 200 + len(problems):
        problem = generate(family, level, split, index)
        key = content_key(problem.text)
        if key not in problems:
            problems[key] = problem
            newest = index
        index += 1
    return list(problems.values())


def check_families(names: Sequence[str] | str) -> tuple[str, ...]:
    """Validated family names; ``"all"`` or an empty list means every family."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    else:
        names = list(names)
    if names in ([], ["all"], [""]):
        return tuple(FAMILIES)
    for name in names:
        if name not in FAMILIES:
            raise InvalidArgument(f"no family {name!r}", advice=f"choose from {', '.join(FAMILIES)} (or 'all')")
    return tuple(dict.fromkeys(names))


def check_levels(levels: Sequence[int] | int) -> tuple[int, ...]:
    """Validated levels, sorted."""
    levels = [levels] if isinstance(levels, int) else list(levels)
    for level in levels:
        if level not in LEVELS:
            raise InvalidArgument(f"no level {level!r}", advice=f"levels go from {LEVELS[0]} to {LEVELS[-1]}")
    if not levels:
        raise InvalidArgument(f"name at least one level from {LEVELS[0]} to {LEVELS[-1]}", key="levels")
    return tuple(sorted(set(levels)))
