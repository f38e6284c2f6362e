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
from gagpo.envs.tasks import TaskSet, in_environment, split_task
from gagpo.settings import RunSettings

Batch = list[tuple[int, int]]
"""The number of the environment at each place of a batch, and how many groups it had before."""


class Schedule:
    """The environment and the task of every place: a function of the seed, the place and the results of earlier tasks.

    Results count with a curriculum that follows them. After any number of places each environment has had its share of
    the groups, by weight, to within one group. Within a batch of ``rollout.tasks`` places the environments are
    shuffled, so that ranks which take every n-th group get some of each. Any thread may call the methods.

    tasks: the training split of every environment, by its name.
    """

    def __init__(self, settings: RunSettings, tasks: Mapping[str, TaskSet]):
        self.names = [env.name for env in settings.all_environments]
        self.tasks = [tasks[name].require() for name in self.names]
        self.curriculum = settings.curriculum
        self._seed, self._batch = settings.seed, settings.rollout.tasks
        self._shares = Apportionment([env.weight for env in settings.all_environments])
        self._batches: list[Batch] = []
        self._counts = [0] * len(self.names)
        self._records = [TaskRecord() for _ in self.names]
        self._opened: dict[int, str] = {}  # with a curriculum that follows results: tasks under way, by place
        self._lock = threading.RLock()

    def open(self, place: int) -> str:
        """The task to play at ``place``, by its name within the run; it is under way from now on."""
        with self._lock:
            task = self.task_at(place)
            if self.curriculum.follows and place not in self._opened:
                self._opened[place] = task
                self._mark(self._at(place)[0])
            return task

    def task_at(self, place: int) -> str:
        """The task that ``place`` would get now, by its name within the run."""
        with self._lock:
            if place in self._opened:
                return self._opened[place]
            number, index = self._at(place)
            task = self.curriculum.task(self.tasks[number], index, self._seed, self._records[number])
            if task not in self.tasks[number]:
                raise InvalidArgument(
                    f"curriculum {self.curriculum.name} chose {task!r:.80}, which is not one of its tasks"
                )
            return in_environment(self.names[number], task)

    def observe(self, played: Sequence[Episode]) -> None:
        """Record the results of whole groups. Failed episodes do not count."""
        if not self.curriculum.follows:
            return
        groups: dict[int, list[Episode]] = {}
        for episode in played:
            groups.setdefault(episode.group, []).append(episode)
        with self._lock:
            for group in groups.values():
                self._enter(group)

    def _enter(self, group: Sequence[Episode]) -> None:
        name = group[0].task
        number, task = self._split(name)
        places = [place for place, other in self._opened.items() if other == name]
        if places:  # an environment of few tasks may have one under way twice
            del self._opened[min(places)]
        known = [episode.success for episode in group if episode.outcome != "failed"]
        if known:
            self._records[number].enter(task, sum(known) / len(known))
        self._mark(number)

    def _at(self, place: int) -> tuple[int, int]:
        """The number of the environment at ``place``, and how many groups it had before."""
        batch, within = divmod(place, self._batch)
        while len(self._batches) <= batch:
            # Places in turn, then shuffled; the groups of one environment keep their order.
            first = len(self._batches) * self._batch
            envs = [self._shares.at(first + i) for i in range(self._batch)]
            order = np.random.default_rng([self._seed, 8, len(self._batches)]).permutation(self._batch)
            shuffled: Batch = []
            for i in order:
                shuffled.append((envs[i], self._counts[envs[i]]))
                self._counts[envs[i]] += 1
            self._batches.append(shuffled)
        return self._batches[batch][within]

    def _split(self, task: str) -> tuple[int, str]:
        """The number of a task's environment, and the task's own id."""
        if not self.names[0]:
            return 0, task
        env, own = split_task(task)
        return self.names.index(env), own

    def _mark(self, number: int) -> None:
        opened = [self._split(task) for task in self._opened.values()]
        self._records[number].under_way = {task for env, task in opened if env == number}

    def state_dict(self) -> dict[str, Any]:
        """The results so far, for a checkpoint; empty where the curriculum does not follow them."""
        if not self.curriculum.follows:
            return {}
        with self._lock:
            seen = {name: record.state_dict() for name, record in zip(self.names, self._records, strict=True)}
            return {"seen": seen, "opened": {str(place): task for place, task in self._opened.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`; KeyError, TypeError or ValueError for anything else."""
        with self._lock:
            self._opened = {int(place): str(task) for place, task in state.get("opened", {}).items()}
            for number, name in enumerate(self.names):
                if self.curriculum.follows:
                    self._records[number].load_state_dict(state.get("seen", {}).get(name, {}))
                self._mark(number)


class Apportionment:
    """Distributes places by weight: after any number of them each environment is within one place of its share.

    Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980): of the environments that are
    due, the one with the earliest deadline. Weights are exact decimals, so that nothing is rounded.

    >>> shares = Apportionment([2, 1, 1])
    >>> [shares.at(place) for place in range(8)]
    [0, 1, 2, 0, 0, 1, 2, 0]
    """

    def __init__(self, weights: Sequence[float]):
        exact = [Fraction(repr(weight)) for weight in weights]
        self._shares = [weight / sum(exact) for weight in exact]
        self._had = [0] * len(exact)
        self._places: list[int] = []
        self._due = Fraction(1, max(1, 2 * len(exact) - 2))

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
