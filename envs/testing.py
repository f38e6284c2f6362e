"""A corridor to walk along: the small environment that checks, benchmarks and tests train on."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from gagpo.envs.base import Kwargs, Outcome, TextEnv
from gagpo.envs.tasks import Task, TaskSet


class CorridorEnv(TextEnv):
    """Walk ``left`` or ``right`` along a corridor, from a place drawn by the seed, to the door of the task."""

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        return cls is CorridorEnv

    def tasks(self, split: str) -> TaskSet:
        doors = {"train": range(8), "test": range(8, 12)}[split]
        return TaskSet(split, [Task(f"door-{door:02d}", split, "corridor", digest=str(door)) for door in doors])

    def begin(self, task: Task) -> Outcome:
        self.door = int(task.digest)
        self.place = int(self.np_random.integers(12, 16))
        return self._look()

    def act(self, action: str) -> Outcome:
        if action not in ("left", "right"):
            return self._look(valid=False)
        self.place = max(0, self.place - 1) if action == "left" else min(15, self.place + 1)
        return self._look()

    def expert_action(self) -> str:
        return "left" if self.place > self.door else "right"

    def _look(self, valid: bool = True) -> Outcome:
        at_door = self.place == self.door
        text = f"You stand at {self.place}. Go to door {self.door}."
        return Outcome(text, float(at_door), at_door, at_door, valid, f"{self.place}>{self.door}", ["left", "right"])


class SleepyEnv(CorridorEnv):
    """A corridor whose steps sleep for ``seconds`` each, as if waiting for a browser or a simulator."""

    def __init__(self, seconds: float = 0.05, **kwargs: Any):
        super().__init__(**kwargs)
        self.seconds = seconds

    def act(self, action: str) -> Outcome:
        time.sleep(self.seconds)
        return super().act(action)


for _name, _kind in (("Corridor", CorridorEnv), ("Sleepy", SleepyEnv)):
    gymnasium.register(
        f"gagpo-test/{_name}-v0", f"{__name__}:{_kind.__name__}", disable_env_checker=True, order_enforce=False
    )
