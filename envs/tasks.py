"""Tasks and splits: sorted ids with content digests, and one hash for the whole split.

Two runs evaluated the same problems exactly when the hashes of their splits agree.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.nearest import nearest

HELD_OUT = "train_dev"
"""Training tasks that an environment holds out of its training split."""

VALIDATION_SPLITS = (HELD_OUT, "validation", "valid_seen", "valid", "dev", "val")
"""Names of splits to choose by, so that test splits stay unseen until the end; the first that exists is used."""


class UnknownTask(GagpoError, KeyError):
    """A task id that is not in its split; the message names the nearest ids."""


class EmptySplit(GagpoError, ValueError):
    """A split without tasks."""


def unknown_split(environment: str, split: str, splits: Iterable[str]) -> InvalidArgument:
    """The error for a split that an environment does not have."""
    advice = f"; {HELD_OUT} requires held_out, such as held_out=0.2" if split == HELD_OUT else ""
    return InvalidArgument(
        f"has no split {split!r}", key="split", where=environment, advice=f"choose one of {', '.join(splits)}{advice}"
    )


@dataclass(frozen=True)
class Task:
    """One problem.

    digest: identifies its content.
    source: where it is stored, such as a path or an index.
    level: difficulty, higher is harder; 0 if unknown.
    """

    id: str
    split: str
    type: str = ""
    digest: str = ""
    source: str = ""
    level: int = 0


def in_environment(env: str, name: str) -> str:
    """The name of a task or panel of ``env`` in a run of several environments; unchanged in a run of one (``""``).

    >>> in_environment("maths", "sum-3"), in_environment("", "sum-3")
    ('maths.sum-3', 'sum-3')
    """
    return f"{env}.{name}" if env else name


def split_task(name: str) -> tuple[str, str]:
    """Split a name of :func:`in_environment` into the environment's name and the task's.

    >>> split_task("maths.sum-3")
    ('maths', 'sum-3')
    """
    env, _, task = name.partition(".")
    return env, task


class TaskSet:
    """The tasks of one split, sorted by id, without duplicates.

    >>> tasks = TaskSet("test", [Task("b", "test"), Task("a", "test")])
    >>> [task.id for task in tasks], len(tasks), "a" in tasks
    (['a', 'b'], 2, True)
    >>> tasks.hash == TaskSet("test", [Task("a", "test"), Task("b", "test")]).hash
    True
    """

    def __init__(self, split: str, tasks: Iterable[Task], advice: str = ""):
        self.split = split
        self.advice = advice
        self._tasks = sorted(tasks, key=lambda task: task.id)
        self._index = {task.id: i for i, task in enumerate(self._tasks)}
        if len(self._index) != len(self._tasks):
            pairs = itertools.pairwise(self._tasks)  # sorted, so equal ids are neighbours
            double = next(task.id for task, following in pairs if task.id == following.id)
            raise InvalidArgument(f"split {split!r} holds task {double!r} twice", advice="task ids must be unique")

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the sorted ids and digests."""
        lines = "".join(f"{task.id}\0{task.digest}\n" for task in self._tasks)
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    @property
    def ids(self) -> list[str]:
        return [task.id for task in self._tasks]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __contains__(self, task_id: object) -> bool:
        return isinstance(task_id, str) and task_id in self._index

    def __getitem__(self, task_id: str) -> Task:
        if task_id in self:
            return self._tasks[self._index[task_id]]
        near = nearest(str(task_id)[:200], self.ids)
        hint = f"nearest: {', '.join(near)}" if near else f"the split has {len(self)} tasks"
        raise UnknownTask(f"split {self.split!r} has no task {str(task_id)[:200]!r}", advice=hint)

    def index_of(self, task_id: str) -> int:
        """The position of a task in the sorted ids; UnknownTask if it is not one of them."""
        return self._index[self[task_id].id]

    def require(self) -> TaskSet:
        """Return this set; raises :class:`EmptySplit` with the environment's advice if it is empty."""
        if not self._tasks:
            raise EmptySplit(f"split {self.split!r} is empty", key="split", advice=self.advice or None)
        return self

    def draw(self, rng: np.random.Generator) -> Task:
        """Draw a task uniformly."""
        return self.require()._tasks[int(rng.integers(len(self._tasks)))]

    def __repr__(self) -> str:
        return f"TaskSet({self.split!r}, {len(self)} tasks, {self.hash})"
