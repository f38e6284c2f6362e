"""The order of task groups in a run: the environment and the task at every place.

The order is computed and not drawn as the run goes on: a resumed run, each rank and a thread that samples ahead find
the same task at a place without having seen those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from gagpo.envs.tasks import TaskSet, in_environment
from gagpo.settings import RunSettings

EnvironmentPlace = tuple[int, int]
"""The number of the environment at a place, and how many groups it had before."""


class Schedule:
    """The environment and the task of every place: a function of the seed and the place.

    Each task of an environment is used once before any comes again. After any number of places each environment has had
    its fraction of the groups, by weight, to within one group. Within a batch of ``rollout.tasks`` places the
    environments are shuffled, so that ranks which take every n-th group get some of each.

    Any thread may call the methods.

    tasks: the training split of every environment, by its name.
    """

    def __init__(self, settings: RunSettings, tasks: Mapping[str, TaskSet]):
        self.names = [env.name for env in settings.all_environments]
        self.tasks = [tasks[name].require() for name in self.names]
        self._seed = settings.seed
        self._batch_size = settings.rollout.tasks
        self._order = WeightedRoundRobin([env.weight for env in settings.all_environments])
        self._batches: list[list[EnvironmentPlace]] = []
        self._counts = [0] * len(self.names)  # groups of each environment in these batches
        self._lock = threading.Lock()

    def task_at(self, place: int) -> str:
        """The task to run at ``place``, by its name within the run."""
        # The trainer and the sampling thread both ask, and the list below grows when a place is first asked for.
        with self._lock:
            env, index = self._at(place)
        tasks = self.tasks[env]
        epoch, position = divmod(index, len(tasks))
        order = np.random.default_rng([self._seed, 7, epoch]).permutation(len(tasks))
        return in_environment(self.names[env], tasks.ids[order[position]])

    def _at(self, place: int) -> EnvironmentPlace:
        batch, position = divmod(place, self._batch_size)
        while len(self._batches) <= batch:
            # Places in turn, then shuffled; the groups of one environment keep their order.
            start = len(self._batches) * self._batch_size
            envs = [self._order.at(start + i) for i in range(self._batch_size)]
            permutation = np.random.default_rng([self._seed, 8, len(self._batches)]).permutation(self._batch_size)
            shuffled: list[EnvironmentPlace] = []
            for i in permutation:
                shuffled.append((envs[i], self._counts[envs[i]]))
                self._counts[envs[i]] += 1
            self._batches.append(shuffled)
        return self._batches[batch][position]


class WeightedRoundRobin:
    """Distributes places by weight: after any number of them each environment is within one place of its fraction.

    Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980): of the environments that are
    due, the one with the earliest deadline. Weights are exact decimals, so that nothing is rounded.

    >>> order = WeightedRoundRobin([2, 1, 1])
    >>> [order.at(place) for place in range(8)]
    [0, 1, 2, 0, 0, 1, 2, 0]
    """

    def __init__(self, weights: Sequence[float]):
        exact = [Fraction(repr(weight)) for weight in weights]
        self._fractions = [weight / sum(exact) for weight in exact]
        self._counts = [0] * len(exact)  # places of each environment so far
        self._envs: list[int] = []  # by place
        self._threshold = Fraction(1, max(1, 2 * len(exact) - 2))  # from this deficit on an environment is due

    def at(self, place: int) -> int:
        """The number of the environment at ``place``."""
        while len(self._envs) <= place:
            self._envs.append(self._next())
        return self._envs[place]

    def _next(self) -> int:
        if len(self._fractions) == 1:
            return 0
        tries = len(self._envs) + 1
        deficits = [fraction * tries - count for fraction, count in zip(self._fractions, self._counts, strict=True)]
        due = [env for env, deficit in enumerate(deficits) if deficit >= self._threshold]
        env = min(due, key=lambda env: (1 - self._threshold - deficits[env]) / self._fractions[env])
        self._counts[env] += 1
        return env
