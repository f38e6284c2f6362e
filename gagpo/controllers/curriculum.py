"""Curricula: which task comes next, given the seed, its number and the results so far.

A curriculum is one class: its fields are its options, its method :meth:`Curriculum.task` chooses. Name your own as
``module:Class``, or offer it from a package as an entry point of ``gagpo.curricula`` (:mod:`gagpo.base.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.base.options import Options, by_name, explain
from gagpo.base.registry import Registry
from gagpo.envs.tasks import TaskSet


class TaskRecord:
    """What is known of the tasks of an environment.

    rates: by task, the success rate of the last group that was played.
    under_way: the tasks that are being played, not to be chosen meanwhile.
    """

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.under_way: set[str] = set()

    def enter(self, task: str, rate: float) -> None:
        """A group of ``task`` has been played; rate: the share of its episodes that succeeded."""
        self.under_way.discard(task)
        self.rates[task] = rate

    def state_dict(self) -> dict[str, float]:
        return dict(self.rates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a :meth:`state_dict`; ValueError or TypeError for anything else."""
        self.rates = {str(task): float(rate) for task, rate in state.items()}
        self.under_way = set()


class Curriculum(Options):
    """An order of tasks with its options.

    follows: whether it depends on the results of the tasks, which are then recorded.
    """

    follows: ClassVar[bool] = False
    name: str

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        """The id of the environment's ``index``-th task, from 0; a function of the arguments alone."""
        raise InvalidArgument(
            f"curriculum {self.name} chooses no task: its class has to have a method task(tasks, index, seed, record)"
        )


def shuffled(tasks: TaskSet, index: int, seed: int) -> str:
    """The ``index``-th id of an order in which each comes once before any comes again, shuffled anew every time."""
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
    """Replays tasks that only some episodes of their group solved, along with new tasks.

    The weight of a task in the draw is ``4 r (1 - r)``, r the success rate of its last group, and at least ``floor``.
    Tasks that were always or never solved are therefore played again now and then.
    """

    follows: ClassVar[bool] = True
    name: str = Field(default="by_success", description="what it is found by")
    again: float = Field(default=0.5, ge=0, le=1, description="share of the groups whose task was played before")
    floor: float = Field(default=0.1, gt=0, le=1, description="least weight of a task, where half solved has 1")

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        rng = np.random.default_rng([seed, 9, index])
        known = [task for task in tasks.ids if task in record.rates and task not in record.under_way]
        new = len(tasks) - len(record.rates.keys() | record.under_way)
        if known and (new <= 0 or rng.random() < self.again):
            rate = np.array([record.rates[task] for task in known])
            weight = np.maximum(4 * rate * (1 - rate), self.floor)
            return known[int(rng.choice(len(known), p=weight / weight.sum()))]
        order = np.random.default_rng([seed, 7, 0]).permutation(len(tasks))
        fresh = (tasks.ids[i] for i in order)
        unseen = (task for task in fresh if task not in record.rates and task not in record.under_way)
        return next(unseen, shuffled(tasks, index, seed))


def _check(curriculum: Any, what: str) -> None:
    if not isinstance(curriculum, type) or not issubclass(curriculum, Curriculum):
        raise InvalidArgument(f"{what} is no curriculum: it must be a class derived from gagpo.controllers.Curriculum")


CURRICULA: Registry[type[Curriculum]] = Registry(
    "curriculum",
    "gagpo.curricula",
    {
        "uniform": "gagpo.controllers.curriculum:Uniform",
        "by_success": "gagpo.controllers.curriculum:BySuccess",
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
