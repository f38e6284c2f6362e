"""The environment under examination: how it is built, where its episodes start, and how it is played at random."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from gagpo.envs.base import Info, Kwargs
from gagpo.envs.tasks import Task, TaskSet

LONGEST_EPISODE = 10_000  # turns; an episode that random actions do not end by then has no limit at all


StepResult = tuple[Any, Any, Any, Any, Info]  # what step() returned, of which nothing is certain yet


class Broken(AssertionError):
    """A promise that the environment does not keep."""


class NotJudged(Exception):
    """A promise of which nothing can be said for this environment; the message says why."""


class Start(NamedTuple):
    """Where an episode begins."""

    task: Task
    seed: int

    @property
    def name(self) -> str:
        return f"task {self.task.id!r}"

    @property
    def options(self) -> Info:
        return {"task": self.task.id}


@dataclass
class Subject:
    """What is checked, and how.

    name: what the environment is called.
    spec: its registration; None where ``build`` makes it.
    build: makes an environment; None where ``spec`` does.
    kwargs: arguments for ``spec``.
    episodes: tasks to play in each check.
    seed: of the choice of tasks and of their episodes.
    deadline: seconds that a check may take.
    """

    name: str
    spec: EnvSpec | None
    build: Callable[[], gymnasium.Env] | None
    kwargs: Kwargs
    episodes: int
    seed: int
    deadline: float

    def make(self, **more: object) -> gymnasium.Env:
        if self.spec is not None:
            return gymnasium.make(self.spec, disable_env_checker=True, **{**self.kwargs, **more})
        assert self.build is not None
        if more:
            raise TypeError("an environment that is given as a function takes no arguments here")
        return self.build()

    def splits(self, env: gymnasium.Env) -> dict[str, TaskSet]:
        """The tasks of every split."""
        names = getattr(env.unwrapped, "splits", ("train", "test"))
        return {split: env.unwrapped.tasks(split) for split in names}  # type: ignore[attr-defined]

    def sample(self, env: gymnasium.Env) -> list[Task]:
        """As many tasks as there are episodes to play, from all splits in turn, always the same ones."""
        shuffled = []
        for split, tasks in self.splits(env).items():
            choice = list(tasks)
            random.Random(f"{split}{self.seed}").shuffle(choice)
            shuffled.append(choice)
        turns = (task for row in itertools.zip_longest(*shuffled) for task in row if task is not None)
        return list(itertools.islice(turns, self.episodes))

    def starts(self, env: gymnasium.Env) -> list[Start]:
        """Where the episodes to play begin."""
        return [Start(task, self.seed + i) for i, task in enumerate(self.sample(env))]


def require(condition: object, complaint: str) -> None:
    """Raise :class:`Broken` with the ``complaint`` unless the ``condition`` holds."""
    if not condition:
        raise Broken(complaint)


def random_action(env: gymnasium.Env, info: Info, rng: random.Random) -> object:
    """One of the admissible actions where they are listed, else one of the action space."""
    admissible = info.get("admissible_actions")
    if admissible:
        return rng.choice(list(admissible))
    env.action_space.seed(rng.getrandbits(31))
    return env.action_space.sample()


def sampled_action(env: gymnasium.Env, info: Info, rng: random.Random, choices: int = 2**32) -> Any:
    """As :func:`random_action`, but what an environment without a list of actions offers as its own, of so many different."""
    sample = getattr(env.unwrapped, "sample_action", None)
    if info.get("admissible_actions") or sample is None:
        return random_action(env, info, rng)
    return sample(np.random.default_rng(rng.randrange(choices)))


def walk(env: gymnasium.Env, start: Start) -> Iterator[tuple[Any, StepResult]]:
    """Play an episode at random to its end; yields each action with what step() returned, the reset first."""
    rng = random.Random(f"{start.task.id}{start.seed}")
    observation, info = env.reset(seed=start.seed, options=start.options)
    yield "", (observation, 0.0, False, False, info)
    for _ in range(LONGEST_EPISODE):
        # By the last info, which may list what can be done.
        action = random_action(env, info, rng)
        result = env.step(action)
        yield action, result
        info = result[4]
        if result[2] or result[3]:
            return
    raise Broken(f"{start.name} did not end within {LONGEST_EPISODE} random actions: give it a turn limit")


def transcripts(spec: str, kwargs: Kwargs, plan: list[tuple[str, int]], turns: int = 30) -> list[list[str]]:
    """The texts of random play from each start of the ``plan``, as :func:`played` gives them, in this process."""
    with closing(gymnasium.make(EnvSpec.from_json(spec), disable_env_checker=True, **kwargs)) as env:
        starts = [Start(Task(task, ""), seed) for task, seed in plan]
        return [played(env, start, turns) for start in starts]


def played(env: gymnasium.Env, start: Start, turns: int = 30) -> list[str]:
    """Random play of at most so many turns: action, observation, reward, flags and info of each as one line."""
    steps = itertools.islice(walk(env, start), turns + 1)
    return [line(action, *result) for action, result in steps]


def line(*seen: object) -> str:
    """What was seen as one line of text, which is equal only where everything is."""
    return json.dumps(seen, sort_keys=True, default=_spelled)


def _spelled(value: object) -> object:
    """What JSON has no form for: arrays and numbers of NumPy as lists and numbers, everything else by its repr."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def contrast(one: object, two: object, width: int = 60) -> str:
    """The first place where the two differ, with what follows."""
    left, right = str(one), str(two)
    place = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    begin = max(0, place - 20)
    return f"{left[begin : begin + width]!r} and {right[begin : begin + width]!r}"
