"""Tasks and their splits: sorted ids with a content digest each, and one hash that names the whole split.

A split is a manifest, not a sampling rule: two runs evaluated the same problems exactly when the hashes agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.nearest import nearest


class UnknownTask(GagpoError, KeyError):
    """A task id that its split does not hold; the message names the nearest ids."""

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])


class EmptySplit(GagpoError, ValueError):
    """A split without a single task: nothing to train on or to evaluate."""


@dataclass(frozen=True)
class Task:
    """One problem. ``digest`` identifies its content; ``source`` says where it is found (a path, an index).

    level: how hard it is among its like, higher is harder; 0 where nobody has said.
    """

    id: str
    split: str
    type: str = ""
    digest: str = ""
    source: str = ""
    level: int = 0


def in_environment(env: str, name: str) -> str:
    """The name of a task, or of a panel, of ``environment`` in a run of several; in a run of one (``""``) its own name.

    >>> in_environment("maths", "sum-3"), in_environment("", "sum-3")
    ('maths.sum-3', 'sum-3')
    """
    return f"{env}.{name}" if env else name


def split_task(name: str) -> tuple[str, str]:
    """Environment and name of what :func:`in_environment` has named in a run of several environments.

    >>> split_task("maths.sum-3")
    ('maths', 'sum-3')
    """
    env, _, own = name.partition(".")
    return env, own


class TaskSet:
    """The tasks of one split, sorted by id, each exactly once.

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
            seen: set[str] = set()
            double = next(task.id for task in self._tasks if task.id in seen or seen.add(task.id))  # type: ignore[func-returns-value]
            raise InvalidArgument(f"split {split!r} holds task {double!r} twice; task ids must be unique")

    @property
    def hash(self) -> str:
        """SHA-256 (first 16 hex digits) over the sorted ids and content digests."""
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
        raise UnknownTask(f"split {self.split!r} has no task {str(task_id)[:200]!r}; {hint}")

    def require(self) -> TaskSet:
        """This set, or :class:`EmptySplit` (with the environment's advice) when it holds no task."""
        if not self._tasks:
            raise EmptySplit(f"split {self.split!r} is empty. {self.advice}".strip())
        return self

    def draw(self, rng: np.random.Generator) -> Task:
        """One task, uniformly."""
        return self.require()._tasks[int(rng.integers(len(self._tasks)))]

    def __repr__(self) -> str:
        return f"TaskSet({self.split!r}, {len(self)} tasks, {self.hash})"
