"""Checks whether tasks of the other splits begin like tasks of the first one, on which a model is trained.

Digests are the environment's word; the first observation is what a model reads. Equal beginnings need not be equal
tasks, because a task may differ in what the agent has not seen yet. So the verdict depends on their share, and on
whether beginnings tell the tasks of the first split apart.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from gagpo.envs.check.subject import Broken, Doubtful, Subject
from gagpo.envs.tasks import TaskSet

BEGINNINGS = 1000  # tasks of a split whose first observations are compared, about
FEW = 0.1  # share of a split's tasks up to which equal beginnings count as chance
MOST = 0.9  # share from which a split counts as a copy, where beginnings tell tasks apart
DISTINCT = 0.5  # different beginnings per task, from which they tell tasks apart


@dataclass(frozen=True)
class Beginnings:
    """The first observations of a split's tasks.

    shared: how many of them the first split has as well.
    """

    split: str
    tasks: int
    distinct: int
    shared: int = 0


def beginnings(subject: Subject, splits: Mapping[str, TaskSet]) -> list[Beginnings]:
    """Start about ``BEGINNINGS`` tasks of every split, all with one seed; the splits in their order."""
    most_seconds = subject.deadline / (2 * len(splits))
    counts: list[Beginnings] = []
    known: set[str] = set()  # of the first split
    with closing(subject.make()) as env:
        for split, tasks in splits.items():
            texts, begun = [], time.monotonic()
            for task in itertools.islice(tasks, 0, None, max(1, len(tasks) // BEGINNINGS)):
                if time.monotonic() - begun > most_seconds:
                    break
                observation, _ = env.reset(seed=subject.seed, options={"task": task.id})
                texts.append(repr(observation))
            shared = sum(text in known for text in texts)
            counts.append(Beginnings(split, len(texts), len(set(texts)), shared))
            if len(counts) == 1:
                known = set(texts)
    return counts


def judge(summary: str, counts: list[Beginnings]) -> str:
    """``summary`` with the tasks that begin alike.

    Raises:
        Broken: nearly all tasks of a split begin like training tasks, and beginnings tell tasks apart.
        Doubtful: more than a few tasks do, or beginnings do not tell tasks apart.
    """
    first, *later = counts
    alike = [count for count in later if count.shared]
    if not alike:
        return summary
    facts = "; ".join(
        f"{count.shared} of {count.tasks} tasks of {count.split} begin like one of {first.tasks} of {first.split}"
        for count in alike
    )
    most = max(count.shared / count.tasks for count in alike)
    tells_apart = first.distinct >= DISTINCT * first.tasks
    if most >= MOST and tells_apart:
        raise Broken(f"{facts}: success there may be memory of training tasks. Give each split tasks of its own")
    if most > FEW:
        reason = f"{first.split} has {first.distinct} different first observations"
        advice = "success there may be memory of training tasks, unless the tasks differ in what is seen later"
        raise Doubtful(f"{facts}; {reason}: {advice}")
    return f"{summary}; {facts}"
