"""Generated tasks: their ids, splits, and the task of an id."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.envs.tasks import Task, TaskSet, UnknownTask
from gagpo.envs.terminal.exercise import Exercise
from gagpo.envs.terminal.families import (
    archives,
    finding,
    logs,
    processes,
    programs,
    repositories,
    settings,
    texts,
)
from gagpo.envs.terminal.families.family import FAMILIES, TaskFamily
from gagpo.envs.terminal.families.words import INVENTED, SplitWords

MODULES = (archives, finding, logs, processes, programs, repositories, settings, texts)
"""Imported so that their families are registered."""

VERSION = 1
"""Of all families; part of every digest."""

SPLITS = ("train", "validation", "test", "unseen")
HELD_OUT = ("git-bisect", "join-tables", "mirror-folder", "move-by-age", "set-yaml", "unpack-archive")
"""Families of the split ``unseen``; they are in no other split."""


def families_of(names: Iterable[str] | str, split: str) -> list[TaskFamily]:
    """The families of a split among those named, in order; ``all`` for all of them.

    Raises InvalidArgument for an unknown name.
    """
    chosen = [names] if isinstance(names, str) else list(names)
    if names == "all":
        chosen = list(FAMILIES)
    unknown = [name for name in chosen if name not in FAMILIES]
    if unknown:
        raise InvalidArgument(f"unknown family {unknown[0]!r:.80}", advice=hint(str(unknown[0]), sorted(FAMILIES)))
    if split == "unseen":
        # Families for training alone leave the split to be evaluated as it is.
        chosen = [name for name in chosen if name in HELD_OUT] or list(HELD_OUT)
    else:
        chosen = [name for name in chosen if name not in HELD_OUT]
    return [FAMILIES[name] for name in sorted(set(chosen))]


@functools.lru_cache(maxsize=64)
def generate_tasks(
    split: str, size: int, families: tuple[str, ...] | str, levels: tuple[int, ...], seed: int, invent: bool = False
) -> TaskSet:
    """The first ``size`` tasks of a split. The families and levels take turns; no file is made yet.

    invent: the names in each task are made up.
    """
    pairs = [
        (family.name, level) for family in families_of(families, split) for level in levels if level <= family.levels
    ]
    advice = f"No family of {split} has one of the levels {list(levels)}."
    vocabulary = INVENTED if invent else split
    tasks = []
    for number in range(size if pairs else 0):
        name, level = pairs[number % len(pairs)]
        task_id = f"{name}-{level}-{vocabulary}-{number // len(pairs):06}-{seed}"
        digest = hashlib.sha256(f"{VERSION} {task_id}".encode()).hexdigest()[:16]
        tasks.append(Task(task_id, split, name, digest, level=level))
    return TaskSet(split, tasks, advice)


@functools.lru_cache(maxsize=256)
def exercise(task_id: str) -> Exercise:
    """The task of an id, the same in every process.

    Raises UnknownTask for an id that no task has.
    """
    name, *numbers = task_id.rsplit("-", 4)
    family = FAMILIES.get(name)
    if family is None or len(numbers) != 4 or not numbers[0].isdigit() or numbers[1] not in (*SPLITS, INVENTED):
        raise UnknownTask(f"no generated task has the id {task_id!r:.200}")
    rng = random.Random(f"{VERSION} {task_id}")
    return family.make(rng, min(int(numbers[0]), family.levels), SplitWords(rng, numbers[1]))
