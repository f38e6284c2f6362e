"""ScienceWorld's tasks and the official splits of their variations (version 1.2 of the package).

The variations of a task are numbered. The first ones are for training, then come those of ``dev`` and of ``test``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.envs.tasks import Task, TaskSet

SPLITS = ("train", "dev", "test")

VARIATIONS = {
    "boil": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "find-animal": (150, 75, 75),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "freeze": (14, 7, 9),
    "grow-fruit": (62, 31, 33),
    "grow-plant": (62, 31, 33),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "melt": (14, 7, 9),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "use-thermometer": (270, 135, 135),
}
"""The number of variations of each task in ``train``, ``dev`` and ``test``."""

SIMPLIFICATIONS = ("noElectricalAction", "openContainers", "openDoors", "selfWateringFlowerPots", "teleportAction")
EASY = "easy"
"""All simplifications that the task allows."""


def checked_tasks(names: Sequence[str] | str) -> tuple[str, ...]:
    """The names of tasks, in the order of :data:`VARIATIONS`; ``all`` for all.

    Raises:
        InvalidArgument: an unknown name, or none.
    """
    if names == "all":
        return tuple(VARIATIONS)
    selected = [names] if isinstance(names, str) else list(names)
    for name in selected:
        if name not in VARIATIONS:
            raise InvalidArgument(f"unknown task type {name!r} of ScienceWorld", advice=hint(str(name), VARIATIONS))
    if not selected:
        raise InvalidArgument("task_types must name at least one task of ScienceWorld, or be all", key="task_types")
    return tuple(name for name in VARIATIONS if name in selected)


def checked_simplifications(names: Sequence[str] | str) -> str:
    """Simplifications as ScienceWorld expects them: sorted, separated by commas.

    Raises:
        InvalidArgument: an unknown simplification.
    """
    items = names.split(",") if isinstance(names, str) else [str(name) for name in names]
    selected = sorted({item.strip() for item in items} - {""})
    for name in selected:
        if name not in (EASY, *SIMPLIFICATIONS):
            raise InvalidArgument(f"unknown simplification {name!r}", advice=hint(name, (EASY, *SIMPLIFICATIONS)))
    return ",".join(selected)


@functools.lru_cache(maxsize=32)
def task_set(split: str, names: tuple[str, ...], simplifications: str) -> TaskSet:
    """The variations of ``split`` of some tasks.

    Raises:
        InvalidArgument: an unknown split.
    """
    if split not in SPLITS:
        raise InvalidArgument(f"unknown split {split!r}", advice=f"choose one of {', '.join(SPLITS)}")
    number = SPLITS.index(split)
    tasks = []
    for name in names:
        start = sum(VARIATIONS[name][:number])
        for variation in range(start, start + VARIATIONS[name][number]):
            digest = f"{name} {variation} {simplifications}".strip()
            tasks.append(Task(f"{name}-{variation:04d}", split, name, digest, str(variation)))
    return TaskSet(split, tasks)
