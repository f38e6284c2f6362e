"""Generated tasks: their ids, splits, and the task of an id."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Sequence

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.envs.tasks import Task, TaskSet, UnknownTask
from gagpo.envs.terminal.chain import chained
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
    split: str,
    size: int,
    families: tuple[str, ...] | str,
    levels: tuple[int, ...],
    seed: int,
    invent: bool = False,
    chain: int = 1,
) -> TaskSet:
    """The first ``size`` tasks of a split. The families and levels take turns; no file is made yet.

    invent: the names in each task are made up.
    chain: each task is made of so many, of different families, which are drawn.

    Raises InvalidArgument for a chain of more tasks than there are families.
    """
    pairs = [
        (family.name, level) for family in families_of(families, split) for level in levels if level <= family.levels
    ]
    advice = f"No family of {split} has one of the levels {list(levels)}."
    count = len({name for name, _ in pairs})
    if pairs and chain > count:
        problem = f"chain must be at most {count}, the number of families of {split} (got {chain})"
        raise InvalidArgument(problem, key="chain")
    vocabulary = INVENTED if invent else split
    tasks = []
    for number in range(size if pairs else 0):
        name, level = pairs[number % len(pairs)]
        chosen, place = f"{name}-{level}", number // len(pairs)
        if chain > 1:
            name, level, chosen = _drawn(pairs, chain, f"{VERSION} {chain} {vocabulary} {number} {seed}")
            place = number
        task_id = f"{chosen}-{vocabulary}-{place:06}-{seed}"
        digest = hashlib.sha256(f"{VERSION} {task_id}".encode()).hexdigest()[:16]
        tasks.append(Task(task_id, split, name, digest, level=level))
    return TaskSet(split, tasks, advice)


def _drawn(pairs: Sequence[tuple[str, int]], chain: int, seed: str) -> tuple[str, int, str]:
    """Type, highest level and beginning of the id of a chained task."""
    rng = random.Random(seed)
    names = rng.sample(sorted({name for name, _ in pairs}), k=chain)
    chosen = [(name, rng.choice([level for other, level in pairs if other == name])) for name in names]
    return "chain", max(level for _, level in chosen), "+".join(f"{name}-{level}" for name, level in chosen)


@functools.lru_cache(maxsize=256)
def exercise(task_id: str) -> Exercise:
    """The task of an id, the same in every process.

    Raises UnknownTask for an id that no task has.
    """
    unknown = UnknownTask(f"no generated task has the id {task_id!r:.200}")
    chosen, *numbers = task_id.rsplit("-", 3)
    if len(numbers) != 3 or numbers[0] not in (*SPLITS, INVENTED):
        raise unknown
    names = chosen.split("+")
    # A task alone draws what it has always drawn; those of a chain differ by their place.
    seeds = [f"{VERSION} {task_id}"] if len(names) == 1 else [f"{VERSION} {task_id} {i}" for i in range(len(names))]
    exercises = []
    for name, seed in zip(names, seeds, strict=True):
        family_name, _, level = name.rpartition("-")
        if family_name not in FAMILIES or not level.isdigit():
            raise unknown
        family, rng = FAMILIES[family_name], random.Random(seed)
        exercises.append(family.make(rng, min(int(level), family.levels), SplitWords(rng, numbers[0])))
    if len(exercises) == 1:
        return exercises[0]
    rng = random.Random(f"{VERSION} {task_id}")
    return chained(exercises, rng, SplitWords(rng, numbers[0]))
