"""Curricula: which task comes next, from the seed, its number and what is known of the tasks; found by name.

A curriculum is one class: its fields are its options, its method :meth:`Curriculum.task` chooses. One of your own is
named by its place, ``module:Class``, or offered by a package as an entry point of ``gagpo.curricula``
(:mod:`gagpo.base.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, by_name, explain
from gagpo.base.registry import Registry
from gagpo.envs.tasks import Task, TaskSet


class TaskVisits(NamedTuple):
    """What is known of a task. times: groups that were played; rate: success of the last one's tries; seen: how many
    groups of its world had been played by then."""

    times: int
    rate: float
    seen: int


class TaskRecord:
    """What is known of the tasks of a world, and which of them are being played and not to be chosen meanwhile."""

    def __init__(self) -> None:
        self.visits: dict[str, TaskVisits] = {}
        self.under_way: set[str] = set()
        self.groups = 0

    def enter(self, task: str, rate: float) -> None:
        """A group of ``task`` has been played; rate: the share of its tries that succeeded."""
        self.under_way.discard(task)
        self.groups += 1
        self.visits[task] = TaskVisits(self.visits[task].times + 1 if task in self.visits else 1, rate, self.groups)

    def state_dict(self) -> dict[str, list[float]]:
        return {task: list(visits) for task, visits in self.visits.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a :meth:`state_dict`; ValueError or TypeError for anything else."""
        self.visits = {
            str(task): TaskVisits(int(times), float(rate), int(seen)) for task, (times, rate, seen) in state.items()
        }
        self.groups = max((visits.seen for visits in self.visits.values()), default=0)
        self.under_way = set()


class Curriculum(Options):
    """An order of tasks with its options. follows: it looks at what became of the tasks, which is then recorded."""

    follows: ClassVar[bool] = False
    name: str

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        """The id of the world's ``index``-th task, from 0; a function of the arguments and of nothing else."""
        raise InvalidArgument(
            f"curriculum {self.name} chooses no task: its class has to have a method task(tasks, index, seed, record)"
        )


def shuffled(tasks: TaskSet, index: int, seed: int) -> str:
    """The ``index``-th id where each comes once before any comes again, in an order drawn anew every time."""
    epoch, place = divmod(index, len(tasks))
    order = np.random.default_rng([seed, 7, epoch]).permutation(len(tasks))
    task: str = tasks.ids[order[place]]
    return task


class Uniform(Curriculum):
    """Each task once before any comes again."""

    name: str = Field(default="uniform", description="what it is found by")

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        return shuffled(tasks, index, seed)


class BySuccess(Curriculum):
    """Tasks that some tries solved and others did not come again more often, beside ever new ones.

    The weight of a task at another visit is ``4 r (1 - r)``, r the success of its last group, and at least ``floor``:
    what was solved, or never was, is looked at again now and then.
    """

    follows: ClassVar[bool] = True
    name: str = Field(default="by_success", description="what it is found by")
    again: float = Field(default=0.5, ge=0, le=1, description="share of the groups whose tasks were played before")
    floor: float = Field(default=0.1, gt=0, le=1, description="least weight of a task, where half solved has 1")

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        rng = np.random.default_rng([seed, 9, index])
        known = [task for task in tasks.ids if task in record.visits and task not in record.under_way]
        new = len(tasks) - len(record.visits.keys() | record.under_way)
        if known and (new <= 0 or rng.random() < self.again):
            rate = np.array([record.visits[task].rate for task in known])
            weight = np.maximum(4 * rate * (1 - rate), self.floor)
            return known[int(rng.choice(len(known), p=weight / weight.sum()))]
        order = np.random.default_rng([seed, 7, 0]).permutation(len(tasks))
        fresh = (tasks.ids[i] for i in order)
        unseen = (task for task in fresh if task not in record.visits and task not in record.under_way)
        return next(unseen, shuffled(tasks, index, seed))


class ByLevel(Curriculum):
    """Tasks from easy to hard, by the level that their world gives them; without levels all are alike.

    A level is passed while its last ``window`` tasks, or all it has, were solved by ``threshold`` of their tries in the
    mean. The lowest that is not is played, and a share ``review`` of the groups goes to those below it. Of a level the
    tasks that were played least come first.
    """

    follows: ClassVar[bool] = True
    name: str = Field(default="by_level", description="what it is found by")
    threshold: float = Field(default=0.7, gt=0, le=1, description="mean success at which a level is passed")
    window: int = Field(default=16, ge=1, description="tasks of a level that the mean is of, its last ones")
    review: float = Field(default=0.2, ge=0, lt=1, description="share of the groups for the levels passed")

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        rng = np.random.default_rng([seed, 9, index])
        levels: dict[int, list[Task]] = {}
        for task in tasks:
            levels.setdefault(task.level, []).append(task)
        order = sorted(levels)
        at = next((n for n, level in enumerate(order) if not self._passed(levels[level], record)), len(order) - 1)
        if at and rng.random() < self.review:
            at = int(rng.integers(at))
        chosen = [task.id for task in levels[order[at]]]
        counts = {task: record.visits[task].times if task in record.visits else 0 for task in chosen}
        free = [task for task in chosen if task not in record.under_way] or chosen
        least = min(counts[task] for task in free)
        rarest = [task for task in free if counts[task] == least]
        return rarest[int(rng.integers(len(rarest)))]

    def _passed(self, tasks: list[Task], record: TaskRecord) -> bool:
        known = [record.visits[task.id] for task in tasks if task.id in record.visits]
        last = sorted(known, key=lambda visits: visits.seen)[-self.window :]
        enough = len(last) >= min(self.window, len(tasks))
        return enough and sum(visits.rate for visits in last) >= self.threshold * len(last)


def _check(curriculum: Any, what: str) -> None:
    if not isinstance(curriculum, type) or not issubclass(curriculum, Curriculum):
        raise InvalidArgument(f"{what} is no curriculum: it must be a class derived from gagpo.controllers.Curriculum")


CURRICULA: Registry[type[Curriculum]] = Registry(
    "curriculum",
    "gagpo.curricula",
    {
        "uniform": "gagpo.controllers.curriculum:Uniform",
        "by_success": "gagpo.controllers.curriculum:BySuccess",
        "by_level": "gagpo.controllers.curriculum:ByLevel",
    },
    _check,
)


def make(value: Any) -> Curriculum:
    """A curriculum from its name or ``{"name": ..., option: value, ...}``; ValueError says what is wrong with it."""
    if isinstance(value, Curriculum):
        return value
    value = by_name(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        known = list(CURRICULA.known())
        raise InvalidArgument(f"a curriculum is a name, or options with a name among them; {hint('', known)}")
    name = value["name"]
    kind = CURRICULA.find(name)
    try:
        return kind.model_validate(dict(value))
    except ValidationError as error:
        raise InvalidArgument(explain(error, kind.model_fields, f"curriculum {name}")) from None


AnyCurriculum = Annotated[SerializeAsAny[Curriculum], BeforeValidator(make)]
"""A field that holds a curriculum, written as :func:`make` reads it."""
