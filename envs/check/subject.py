"""The environment under test: how it is built, where its episodes start, and random episodes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from gagpo.envs.base import Info, Kwargs
from gagpo.envs.lookup import clusters_of, find_spec, portable
from gagpo.envs.rewarded import make
from gagpo.envs.tasks import Task, TaskSet

LONGEST_EPISODE = 10_000  # turns; an episode that random actions do not end by then has no turn limit

StepResult = tuple[Any, Any, Any, Any, Info]
"""What ``step()`` returned, before any check."""


class CheckFailed(AssertionError):
    """The environment does not keep a promise."""


class CheckWarning(Exception):
    """The promise is kept as far as it can be checked; the message says why a result may still mislead."""


class NotApplicable(Exception):
    """A promise does not apply to this environment; the message gives the reason."""


class Start(NamedTuple):
    """The start of an episode."""

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
    """The environment to check, with the settings of the checks.

    name: its id.
    kwargs: arguments of its constructor.
    episodes: number of tasks in each check.
    seed: for the choice of tasks and for their episodes.
    deadline: time limit of each check, in seconds.
    """

    name: str
    kwargs: Kwargs
    episodes: int
    seed: int
    deadline: float

    def make(self, **overrides: object) -> gymnasium.Env:
        """Build the environment; raises TypeError if it does not accept the arguments."""
        return make(find_spec(self.name), {**self.kwargs, **overrides}, disable_env_checker=True)

    @property
    def portable_spec(self) -> str:
        """The registration as JSON; raises InvalidArgument if another process cannot build the environment."""
        return portable(find_spec(self.name))

    def splits(self, env: gymnasium.Env) -> dict[str, TaskSet]:
        """The tasks of every split."""
        names = getattr(env.unwrapped, "splits", ("train", "test"))
        return {split: env.unwrapped.tasks(split) for split in names}  # type: ignore[attr-defined]

    def in_clusters(self, tasks: Sequence[str]) -> str:
        """``" in 4 rooms"`` where tasks share rooms or the like; else empty."""
        clusters = clusters_of(self.name, self.kwargs, tasks)
        return f" in {clusters.counted}" if clusters else ""

    def sample(self, env: gymnasium.Env) -> list[Task]:
        """The tasks of the checks: always the same, from all splits in turn."""
        shuffled = []
        for split, tasks in self.splits(env).items():
            choice = list(tasks)
            random.Random(f"{split}{self.seed}").shuffle(choice)
            shuffled.append(choice)
        turns = (task for row in itertools.zip_longest(*shuffled) for task in row if task is not None)
        return list(itertools.islice(turns, self.episodes))

    def starts(self, env: gymnasium.Env) -> list[Start]:
        """The starts of the episodes of the checks."""
        return [Start(task, self.seed + i) for i, task in enumerate(self.sample(env))]


def require(condition: object, complaint: str) -> None:
    """Raise :class:`CheckFailed` with ``complaint`` unless ``condition`` is true."""
    if not condition:
        raise CheckFailed(complaint)


def random_action(env: gymnasium.Env, info: Info, rng: random.Random) -> object:
    """One of the admissible actions if they are listed, else a sample of the action space."""
    admissible = info.get("admissible_actions")
    if admissible:
        return rng.choice(list(admissible))
    env.action_space.seed(rng.getrandbits(31))
    return env.action_space.sample()


def sampled_action(env: gymnasium.Env, info: Info, rng: random.Random, choices: int = 2**32) -> Any:
    """Like :func:`random_action`, but prefers ``sample_action`` to the action space.

    choices: number of different seeds for ``sample_action``.
    """
    sample = getattr(env.unwrapped, "sample_action", None)
    if info.get("admissible_actions") or sample is None:
        return random_action(env, info, rng)
    return sample(np.random.default_rng(rng.randrange(choices)))


def walk(env: gymnasium.Env, start: Start) -> Iterator[tuple[Any, StepResult]]:
    """Run a random episode; yields each action with the result of ``step()``, beginning with the reset."""
    rng = random.Random(f"{start.task.id}{start.seed}")
    observation, info = env.reset(seed=start.seed, options=start.options)
    yield "", (observation, 0.0, False, False, info)
    for _ in range(LONGEST_EPISODE):
        action = random_action(env, info, rng)
        result = env.step(action)
        yield action, result
        info = result[4]
        if result[2] or result[3]:
            return
    raise CheckFailed(f"{start.name} did not end within {LONGEST_EPISODE} random actions: give it a turn limit")


def transcripts(spec: str, kwargs: Kwargs, plan: list[tuple[str, int]]) -> list[list[str]]:
    """:func:`random_play` from each (task id, seed) of ``plan``, in this process."""
    with closing(make(EnvSpec.from_json(spec), kwargs, disable_env_checker=True)) as env:
        return [random_play(env, Start(Task(task, ""), seed)) for task, seed in plan]


def random_play(env: gymnasium.Env, start: Start, turns: int = 30) -> list[str]:
    """At most ``turns`` random turns, one line each: action, observation, reward, flags and info."""
    steps = itertools.islice(walk(env, start), turns + 1)
    return [line(action, *result) for action, result in steps]


def line(*values: object) -> str:
    """The values as one line of text, for comparison."""
    return json.dumps(values, sort_keys=True, default=_to_json)


def _to_json(value: object) -> object:
    """NumPy arrays and numbers as lists and numbers, anything else as its repr."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


def contrast(first: object, second: object, width: int = 60) -> str:
    """Excerpts from the first difference on."""
    first_text = str(first)
    second_text = str(second)
    position = next(
        (i for i, (a, b) in enumerate(zip(first_text, second_text, strict=False)) if a != b),
        min(len(first_text), len(second_text)),
    )
    start = max(0, position - 20)
    return f"{first_text[start : start + width]!r} and {second_text[start : start + width]!r}"
