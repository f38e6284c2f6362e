"""The order of task groups in a run: the environment and the task at every place."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gagpo.agents.episodes import Episode
from gagpo.base.errors import InvalidArgument
from gagpo.controllers.curriculum import TaskRecord
from gagpo.envs.tasks import TaskSet, split_task
from gagpo.settings import RunEnvironment, RunSettings

Numbers = list[tuple[int, int]]  # of each place of a batch: the environment, and how many groups it had before


class Schedule:
    """A function of the run's seed, the place and, with a curriculum that follows outcomes, what became of the tasks.

    tasks: the training split of every environment, by its name. After any number of places each environment has had its
    share of the groups, by weight, to within one group; within a batch of ``rollout.tasks`` places the environments are
    shuffled, so that ranks which take every so many-th group get some of each. May be asked by any thread.
    """

    def __init__(self, settings: RunSettings, tasks: Mapping[str, TaskSet]):
        self.envs: Sequence[RunEnvironment] = settings.all_environments
        self.tasks = [tasks[env.name].require() for env in self.envs]
        self._seed, self._batch = settings.seed, settings.rollout.tasks
        self._shares = Apportionment([env.weight for env in self.envs])
        self._batches: list[Numbers] = []
        self._counts = [0] * len(self.envs)
        self._records = [TaskRecord() for _ in self.envs]
        self._opened: dict[int, str] = {}  # by place, where outcomes count: the task that is under way there
        self._lock = threading.RLock()

    def open(self, place: int) -> str:
        """The task to play at ``place`` from now on, by its name within the run."""
        with self._lock:
            task = self.task_at(place)
            number, _ = self._numbers(place)
            if self.envs[number].curriculum.follows and place not in self._opened:
                self._opened[place] = task
                self._mark(number)
            return task

    def task_at(self, place: int) -> str:
        """The task of ``place`` as things stand, by its name within the run."""
        with self._lock:
            if place in self._opened:
                return self._opened[place]
            number, index = self._numbers(place)
            env = self.envs[number]
            task = env.curriculum.task(self.tasks[number], index, self._seed, self._records[number])
            if task not in self.tasks[number]:
                raise InvalidArgument(
                    f"curriculum {env.curriculum.name} chose {task!r:.80}, which is not one of its tasks"
                )
            return env.task(task)

    def observe(self, played: Sequence[Episode]) -> None:
        """Enter what became of whole groups; failed episodes tell nothing of their task."""
        if not any(env.curriculum.follows for env in self.envs):
            return
        groups: dict[int, list[Episode]] = {}
        for episode in played:
            groups.setdefault(episode.group, []).append(episode)
        with self._lock:
            for group in groups.values():
                self._enter(group)

    def _enter(self, group: Sequence[Episode]) -> None:
        name = group[0].task
        number, task = self._env_of(name)
        if not self.envs[number].curriculum.follows:
            return
        places = [place for place, other in self._opened.items() if other == name]
        if places:  # an environment of few tasks may have one under way twice
            del self._opened[min(places)]
        known = [episode.success for episode in group if episode.outcome != "failed"]
        if known:
            self._records[number].enter(task, sum(known) / len(known))
        self._mark(number)

    # Places ---------------------------------------------------------------------------------------------

    def environment_at(self, place: int) -> RunEnvironment:
        """The environment of ``place``."""
        with self._lock:
            return self.envs[self._numbers(place)[0]]

    def _numbers(self, place: int) -> tuple[int, int]:
        """The environment of ``place``, by its number, and how many groups it had before."""
        batch, within = divmod(place, self._batch)
        while len(self._batches) <= batch:
            # Places in turn, then shuffled; the groups of one environment keep their order.
            first = len(self._batches) * self._batch
            envs = [self._shares.at(first + i) for i in range(self._batch)]
            order = np.random.default_rng([self._seed, 8, len(self._batches)]).permutation(self._batch)
            numbers: Numbers = []
            for i in order:
                numbers.append((envs[i], self._counts[envs[i]]))
                self._counts[envs[i]] += 1
            self._batches.append(numbers)
        return self._batches[batch][within]

    def _env_of(self, task: str) -> tuple[int, str]:
        """The number of a task's environment, and the task's own id."""
        if not self.envs[0].name:
            return 0, task
        env, own = split_task(task)
        return [one.name for one in self.envs].index(env), own

    def _mark(self, number: int) -> None:
        opened = [self._env_of(task) for task in self._opened.values()]
        self._records[number].under_way = {task for env, task in opened if env == number}

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The records of the curricula; empty where none follows outcomes."""
        with self._lock:
            seen = {
                env.name: record.state_dict()
                for env, record in zip(self.envs, self._records, strict=True)
                if env.curriculum.follows
            }
            return {"seen": seen, "opened": {str(p): task for p, task in self._opened.items()}} if seen else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a :meth:`state_dict`; KeyError, TypeError or ValueError for anything else."""
        with self._lock:
            for number, env in enumerate(self.envs):
                if env.curriculum.follows:
                    self._records[number].load_state_dict(state.get("seen", {}).get(env.name, {}))
            self._opened = {int(place): str(task) for place, task in state.get("opened", {}).items()}
            for number in range(len(self.envs)):
                self._mark(number)


class Apportionment:
    """Places dealt out by weight: after any number of them each environment is within one place of its share.

    Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980): of the environments that are
    due, the one that must have a place soonest. Weights are taken as the decimals they are written as, so that nothing
    is rounded.

    >>> shares = Apportionment([2, 1, 1])
    >>> [shares.at(place) for place in range(8)]
    [0, 1, 2, 0, 0, 1, 2, 0]
    """

    def __init__(self, weights: Sequence[float]):
        exact = [Fraction(repr(weight)) for weight in weights]
        self._shares = [weight / sum(exact) for weight in exact]
        self._had = [0] * len(exact)
        self._places: list[int] = []
        slack = max(1, 2 * len(exact) - 2)
        self._due = Fraction(1, slack)

    def at(self, place: int) -> int:
        """The number of the environment at ``place``."""
        while len(self._places) <= place:
            self._places.append(self._next())
        return self._places[place]

    def _next(self) -> int:
        if len(self._shares) == 1:
            return 0
        owed = [share * (len(self._places) + 1) - had for share, had in zip(self._shares, self._had, strict=True)]
        due = [number for number, debt in enumerate(owed) if debt >= self._due]
        chosen = min(due, key=lambda number: (1 - self._due - owed[number]) / self._shares[number])
        self._had[chosen] += 1
        return chosen
