"""Curricula: which task is played next.

A curriculum is a class; its fields are its options. Name your own as ``module:Class``, or offer it from a package
through the entry point group ``gagpo.curricula`` (:mod:`gagpo.base.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.base.registry import OptionsRegistry
from gagpo.envs.tasks import TaskSet


class TaskRecord:
    """Results of an environment's tasks.

    rates: success rate of each task's last group.
    under_way: tasks that are being played, which a curriculum does not choose again.
    """

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.under_way: set[str] = set()

    def enter(self, task: str, rate: float) -> None:
        """Record a finished group of ``task``; rate: share of its episodes that succeeded."""
        self.under_way.discard(task)
        self.rates[task] = rate

    def state_dict(self) -> dict[str, float]:
        return dict(self.rates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`; ValueError or TypeError for anything else."""
        self.rates = {str(task): float(rate) for task, rate in state.items()}
        self.under_way = set()


class Curriculum(Options):
    """An order of tasks.

    follows: whether it depends on the results of earlier groups.
    """

    follows: ClassVar[bool] = False
    name: str

    def task(self, tasks: TaskSet, index: int, seed: int, record: TaskRecord) -> str:
        """The id of the environment's ``index``-th task, from 0; depends on the arguments alone."""
        raise InvalidArgument(
            f"curriculum {self.name} does not choose tasks: add a method task(tasks, index, seed, record) to its class"
        )


def shuffled(tasks: TaskSet, index: int, seed: int) -> str:
    """The ``index``-th id when all tasks are played once per epoch, in an order shuffled for each epoch."""
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

    A task is drawn with weight ``max(4 r (1 - r), floor)``, r the success rate of its last group, so tasks that were
    always or never solved are repeated less often.
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


CURRICULA: OptionsRegistry[Curriculum] = OptionsRegistry(
    "curriculum",
    "gagpo.curricula",
    {
        "uniform": "gagpo.controllers.curriculum:Uniform",
        "by_success": "gagpo.controllers.curriculum:BySuccess",
    },
    Curriculum,
)

AnyCurriculum = Annotated[SerializeAsAny[Curriculum], BeforeValidator(CURRICULA.make)]
"""A field that holds a curriculum, written as :meth:`OptionsRegistry.make` reads it."""
