"""Checks whether tasks of the other splits begin like tasks of the first one, on which a model is trained.

The environment computes the digests itself, so they prove little; the first observation is what a model reads. Tasks
with equal beginnings may still differ in what the agent sees later. So the verdict depends on the fraction of equal
beginnings, and on whether beginnings distinguish the tasks of the first split.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from gagpo.envs.check.subject import CheckFailed, CheckWarning, Subject
from gagpo.envs.tasks import TaskSet

TASKS_PER_SPLIT = 1000  # whose first observations are compared, about
CHANCE_FRACTION = 0.1  # of a split's tasks; up to this, equal beginnings count as chance
COPY_FRACTION = 0.9  # from this, a split counts as a copy, where beginnings distinguish tasks
DISTINCT_FRACTION = 0.5  # different beginnings per task, from which beginnings distinguish tasks


@dataclass(frozen=True)
class Beginnings:
    """The first observations of a split's tasks.

    tasks: number of observations.
    distinct: number of different observations.
    shared: number of observations that the first split has as well.
    """

    split: str
    tasks: int
    distinct: int
    shared: int = 0


def beginnings(subject: Subject, splits: Mapping[str, TaskSet]) -> list[Beginnings]:
    """Start about ``BEGINNINGS`` tasks of every split, all with one seed; the splits in their order."""
    seconds_per_split = subject.deadline / (2 * len(splits))
    counts: list[Beginnings] = []
    first_split_texts: set[str] = set()
    with closing(subject.make()) as env:
        for split, tasks in splits.items():
            texts = []
            start_time = time.monotonic()
            for task in itertools.islice(tasks, 0, None, max(1, len(tasks) // TASKS_PER_SPLIT)):
                if time.monotonic() - start_time > seconds_per_split:
                    break
                observation, _ = env.reset(seed=subject.seed, options={"task": task.id})
                texts.append(repr(observation))
            shared = sum(text in first_split_texts for text in texts)
            counts.append(Beginnings(split, len(texts), len(set(texts)), shared))
            if len(counts) == 1:
                first_split_texts = set(texts)
    return counts


def judge(summary: str, counts: list[Beginnings]) -> str:
    """``summary`` with the tasks that begin alike.

    Raises:
        CheckFailed: nearly all tasks of a split begin like training tasks, and beginnings distinguish tasks.
        CheckWarning: more than a few tasks do, or beginnings do not distinguish tasks.
    """
    first_split, *other_splits = counts
    overlapping = [count for count in other_splits if count.shared]
    if not overlapping:
        return summary
    training = f"one of {first_split.tasks} of {first_split.split}"
    facts = "; ".join(
        f"{count.shared} of {count.tasks} tasks of {count.split} begin like {training}" for count in overlapping
    )
    largest_fraction = max(count.shared / count.tasks for count in overlapping)
    distinguishes = first_split.distinct >= DISTINCT_FRACTION * first_split.tasks
    if largest_fraction >= COPY_FRACTION and distinguishes:
        raise CheckFailed(f"{facts}: success there may be memory of training tasks. Give each split tasks of its own")
    if largest_fraction > CHANCE_FRACTION:
        reason = f"{first_split.split} has {first_split.distinct} different first observations"
        advice = "success there may be memory of training tasks, unless the tasks differ in what is seen later"
        raise CheckWarning(f"{facts}; {reason}: {advice}")
    return f"{summary}; {facts}"
