"""Corridors with further splits: one to choose by, and one whose validation split has no tasks."""

import gymnasium

from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.testing import CorridorEnv

DOORS = {"train": range(6), "validation": range(6, 8), "test": range(8, 12)}


class ChosenEnv(CorridorEnv):
    splits = tuple(DOORS)

    def tasks(self, split):
        return TaskSet(split, [Task(f"door-{door:02d}", split, "corridor", digest=str(door)) for door in DOORS[split]])


class EmptyEnv(ChosenEnv):
    def tasks(self, split):
        return TaskSet(split, []) if split == "validation" else super().tasks(split)


for kind in (ChosenEnv, EmptyEnv):
    gymnasium.register(
        f"gagpo-test/{kind.__name__.removesuffix('Env')}-v0",
        f"{__name__}:{kind.__name__}",
        disable_env_checker=True,
        order_enforce=False,
    )
