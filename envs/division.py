"""Divide tasks into splits by a hash, so that a task keeps its split when others are added."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tasks import Task, TaskSet

FEW = 10
"""Tasks from which every split has at least one; fewer tasks always make a training and a test task."""
SMALL = 100
"""Tasks of which a fifth is counted; of more, a hash leaves nearly a fifth."""


def split_of(key: str) -> str:
    """The split of a key: a tenth of all keys ``test``, a tenth ``validation``, the rest ``train``."""
    tenth = int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % 10
    if tenth == 0:
        return "test"
    return "validation" if tenth == 1 else "train"


def part_of(key: str, splits: tuple[str, ...]) -> str:
    """The split of a key where only some splits are to be divided: a key of another split goes to the first of them.

    >>> {part_of(str(number), ("train", "validation")) for number in range(50)} == {"train", "validation"}
    True
    """
    split = split_of(key)
    return split if split in splits else splits[0]


def fill_splits(division: Mapping[str, str], splits: tuple[str, ...], filled: Collection[str] = ()) -> dict[str, str]:
    """The division of keys into splits, with at least one key in each split.

    A hash leaves a split of a few tasks empty by chance: a tenth of ten tasks is none in 35 % of the cases. An empty
    split gets a key of the largest other one: the key whose SHA-256 is smallest. With fewer than :data:`FEW` keys only
    ``train`` and ``test`` are filled, with one key none.

    division: the split of each key.
    splits: the splits to fill, such as ``train``, ``validation`` and ``test``.
    filled: splits that have other tasks already.

    >>> fill_splits({"a": "train", "b": "train", "c": "train"}, ("train", "validation", "test"))
    {'a': 'train', 'b': 'train', 'c': 'test'}
    """
    complete = dict(division)
    required: list[str] = [split for split in ("test", "train") if split in splits]
    if len(complete) >= FEW:
        required += splits
    for split in dict.fromkeys(required):
        members = {name: [key for key in complete if complete[key] == name] for name in splits}
        if members[split] or split in filled:
            continue
        # A split that is not required, or has other tasks, may be emptied.
        donors = [name for name in splits if len(members[name]) > (name in required and name not in filled)]
        if donors:
            donor = max(donors, key=lambda name: len(members[name]))
            complete[min(members[donor], key=_hash)] = split
    return complete


def divided(
    tasks: Iterable[Task], by_chance: Mapping[str, str], splits: tuple[str, ...], advice: str
) -> dict[str, TaskSet]:
    """The task sets of all splits; tasks without a split are divided, and no split stays empty if it can be filled.

    by_chance: the split of each task id, for tasks without one. Of fewer than :data:`SMALL` tasks a fifth is ``test``.
    advice: for an empty split.
    """
    tasks = list(tasks)
    undecided = {task.id: by_chance[task.id] for task in tasks if not task.split}
    named = {task.split for task in tasks if task.split}
    if len(undecided) < SMALL and "test" not in named:
        undecided = _with_a_fifth(undecided)
    split_by_id = fill_splits(undecided, splits, named)
    placed = [replace(task, split=task.split or split_by_id[task.id]) for task in tasks]
    return {split: TaskSet(split, (task for task in placed if task.split == split), advice) for split in splits}


def _with_a_fifth(division: Mapping[str, str]) -> dict[str, str]:
    """The division with exactly a fifth of the keys in ``test``, rounded: chance can leave one of twelve, or six.

    A key that is added may move another one between the splits, as it cannot in a large set.
    """
    ranked = sorted(division, key=lambda key: (division[key] != "test", _hash(key)))
    count = round(len(ranked) / 5)
    return {key: "test" if rank < count else "train" for rank, key in enumerate(ranked)}


def hold_out(tasks: TaskSet, fraction: float, split: str, key: Callable[[Task], str]) -> tuple[TaskSet, TaskSet]:
    """Divide the tasks of a split: those that stay, and those of the new split ``split``.

    The first 32 bits of a key's SHA-256 decide, so a task keeps its side when others are added, and tasks with equal
    keys stay together.

    fraction: of all keys that the new split gets, between 0 and 1.

    Raises: InvalidArgument if a task of one part has the content (digest) of a task of the other part.

    >>> tasks = TaskSet("train", [Task(f"mug-{room}/{trial}", "train") for room in range(4) for trial in "ab"])
    >>> train, dev = hold_out(tasks, 0.25, "train_dev", lambda task: task.id.split("/")[0])
    >>> len(train), dev.split, dev.ids
    (6, 'train_dev', ['mug-1/a', 'mug-1/b'])
    """
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        sides[int(_hash(key(task))[:8], 16) < fraction * 2**32].append(task)
    advice = f"{len(tasks)} tasks of {tasks.split} with a held-out fraction of {fraction:g} leave it empty."
    remaining, held = (
        TaskSet(name, (replace(task, split=name) for task in side), advice)
        for name, side in zip((tasks.split, split), sides, strict=True)
    )
    for task, original in shared(held, remaining):
        raise InvalidArgument(
            f"task {original.id!r} of {tasks.split} and task {task.id!r} of {split} are the same problem",
            advice="remove one",
        )
    return remaining, held


def hold_out_tenth(tasks: TaskSet, split: str) -> tuple[TaskSet, TaskSet]:
    """As :func:`hold_out` for about a tenth of the tasks by their content, and at least one."""
    hashes = [int(_hash(_content(task))[:8], 16) for task in tasks]
    return hold_out(tasks, max(0.1, (min(hashes) + 1) / 2**32), split, _content)


def _content(task: Task) -> str:
    return task.digest or task.id


def shared(tasks: TaskSet, training: TaskSet) -> list[tuple[Task, Task]]:
    """The tasks that are in ``training`` too, each with its copy: of equal content, or of equal id without a digest."""
    by_content = {_content(task): task for task in training}
    return [(task, by_content[_content(task)]) for task in tasks if _content(task) in by_content]


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
