"""The order of task groups in a run: the environment and the task at every place."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from gagpo.envs.tasks import TaskSet, in_environment
from gagpo.settings import RunSettings

Batch = list[tuple[int, int]]
"""The number of the environment at each place of a batch, and how many groups it had before."""


class Schedule:
    """The environment and the task of every place: a function of the seed and the place.

    Each task of an environment is played once before any comes again. After any number of places each environment has
    had its share of the groups, by weight, to within one group. Within a batch of ``rollout.tasks`` places the
    environments are shuffled, so that ranks which take every n-th group get some of each. Any thread may call the
    methods.

    tasks: the training split of every environment, by its name.
    """

    def __init__(self, settings: RunSettings, tasks: Mapping[str, TaskSet]):
        self.names = [env.name for env in settings.all_environments]
        self.tasks = [tasks[name].require() for name in self.names]
        self._seed, self._batch = settings.seed, settings.rollout.tasks
        self._shares = Apportionment([env.weight for env in settings.all_environments])
        self._batches: list[Batch] = []
        self._counts = [0] * len(self.names)
        self._lock = threading.Lock()

    def task_at(self, place: int) -> str:
        """The task to play at ``place``, by its name within the run."""
        with self._lock:
            number, index = self._at(place)
        tasks = self.tasks[number]
        epoch, within = divmod(index, len(tasks))
        order = np.random.default_rng([self._seed, 7, epoch]).permutation(len(tasks))
        return in_environment(self.names[number], tasks.ids[order[within]])

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
