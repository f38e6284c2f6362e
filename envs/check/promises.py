"""The promises of an environment, each as a function that looks whether it is kept."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from gagpo.envs.check.fresh_process import call
from gagpo.envs.pool import Event, Pool
from gagpo.envs.lookup import portable
from gagpo.envs.pool.wire import describe
from gagpo.envs.tasks import Task, TaskSet

LONGEST_EPISODE = 10_000  # turns; an episode that random actions do not end by then has no limit at all
GARBAGE = {
    "the empty string": "",
    "a space": " ",
    "100 kB": "x" * 100_000,
    "100 kB of brackets": "(" * 50_000 + "[" * 50_000,
    "other scripts": "走到 柜子 مرحبا Zoë 👩‍🚀",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x85\u2028",
    "a lone surrogate": "go to \ud800",
    "formatting": "%s %n {0} {} ${HOME} \\x00 ../../etc/passwd",
    "markup": "<script>alert(1)</script>&amp;",
    "code": "__import__('os').abort()",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "task_type": (str,),
    "split": (str,),
    "turn": (int,),
    "success": (bool,),
    "valid": (bool,),
    "state": (str, type(None)),
    "admissible_actions": (list, type(None)),
}


class Broken(AssertionError):
    """A promise that the environment does not keep."""


@dataclass
class Subject:
    """The environment under examination."""

    spec: EnvSpec
    env_id: str
    kwargs: dict[str, Any]
    episodes: int
    seed: int
    deadline: float

    def make(self, **more: Any) -> gymnasium.Env:
        return gymnasium.make(self.spec, disable_env_checker=True, **{**self.kwargs, **more})

    def splits(self, env: gymnasium.Env) -> dict[str, TaskSet]:
        return {split: env.unwrapped.tasks(split) for split in _splits(env)}  # type: ignore[attr-defined]

    def sample(self, env: gymnasium.Env, count: int | None = None) -> list[Task]:
        """``count`` tasks, from all splits in turn, always the same ones."""
        shuffled = []
        for split, tasks in self.splits(env).items():
            choice = list(tasks)
            random.Random(f"{split}{self.seed}").shuffle(choice)
            shuffled.append(choice)
        turns = (task for row in itertools.zip_longest(*shuffled) for task in row if task is not None)
        return list(itertools.islice(turns, count or self.episodes))


def _splits(env: gymnasium.Env) -> tuple[str, ...]:
    return tuple(getattr(env.unwrapped, "splits", ("train", "test")))


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise Broken(complaint)


# Playing --------------------------------------------------------------------------------------------------------------


def _random_action(env: gymnasium.Env, info: Mapping[str, Any], rng: random.Random) -> str:
    admissible = info.get("admissible_actions")
    if admissible:
        return rng.choice(list(admissible))
    env.action_space.seed(rng.getrandbits(31))
    return env.action_space.sample()


def _walk(env: gymnasium.Env, task: str, seed: int) -> Iterator[tuple[str, tuple]]:
    """Play ``task`` at random to its end; yields each action with what step() returned, the reset first."""
    rng = random.Random(f"{task}{seed}")
    observation, info = env.reset(seed=seed, options={"task": task})
    yield "", (observation, 0.0, False, False, info)
    for _ in range(LONGEST_EPISODE):
        action = _random_action(env, info, rng)
        result = env.step(action)
        yield action, result
        info = result[4]
        if result[2] or result[3]:
            return
    raise Broken(f"task {task!r} did not end within {LONGEST_EPISODE} random actions: give it a turn limit")


def transcripts(spec: str, kwargs: Mapping[str, Any], plan: list[tuple[str, int]], turns: int = 30) -> list[list[str]]:
    """The texts of random play of each (task, seed) of the ``plan``: action, observation, reward and info as lines."""
    with closing(gymnasium.make(EnvSpec.from_json(spec), disable_env_checker=True, **kwargs)) as env:
        return [
            [json.dumps([action, *result], sort_keys=True) for action, result in itertools.islice(walk, turns + 1)]
            for walk in (_walk(env, task, seed) for task, seed in plan)
        ]


# The checks: each returns what it saw, or raises ----------------------------------------------------------------------


def _construction(subject: Subject) -> str:
    begin = time.perf_counter()
    with closing(subject.make()) as env:
        return f"{type(env.unwrapped).__name__} built in {time.perf_counter() - begin:.2f} s"


def _gymnasium(subject: Subject) -> str:
    with closing(subject.make()) as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    complaints = [" ".join(str(warning.message).split()) for warning in caught]
    complaints = [text for text in complaints if "render fps" not in text]  # text has no frame rate
    return f"check_env passes{', but warns: ' if complaints else ''}{'; '.join(complaints)[:300]}"


def _tasks(subject: Subject) -> str:
    with closing(subject.make()) as env, closing(subject.make()) as other:
        _require(hasattr(env.unwrapped, "tasks"), "it has no method tasks(split) that names its tasks")
        splits, again = subject.splits(env), subject.splits(other)
    seen = []
    for split, tasks in splits.items():
        ids = [task.id for task in tasks]
        _require(ids == sorted(set(ids)), f"the task ids of split {split!r} are not sorted, or not unique")
        _require(all(task.split == split for task in tasks), f"a task of split {split!r} names another split")
        _require(tasks.hash == again[split].hash, f"split {split!r} has another hash in another instance")
        seen.append(f"{split}: {len(ids)} tasks, {tasks.hash}")
    _require(
        any(len(tasks) for tasks in splits.values()), f"every split is empty. {next(iter(splits.values())).advice}"
    )
    return "; ".join(seen)


def _disjoint(subject: Subject) -> str:
    with closing(subject.make()) as env:
        splits = subject.splits(env)
    for (one, first), (two, second) in itertools.combinations(splits.items(), 2):
        shared = {task.id for task in first} & {task.id for task in second}
        _require(not shared, f"{one} and {two} share {len(shared)} tasks, such as {min(shared, default='')!r}")
        contents = {task.digest: task.id for task in first if task.digest}
        twins = [(contents[task.digest], task.id) for task in second if task.digest in contents]
        _require(not twins, f"{one} and {two} share {len(twins)} contents under two ids, such as {twins[:1]}")
    without = sum(not task.digest for tasks in splits.values() for task in tasks)
    return f"{', '.join(splits)}: no id and no content twice" + (f"; {without} tasks have no digest" if without else "")


def _exact_task(subject: Subject) -> str:
    with closing(subject.make()) as env:
        tasks = subject.sample(env)
        first: dict[str, tuple] = {}
        for attempt in range(2):
            for task in tasks if attempt else reversed(tasks):
                observation, info = env.reset(seed=subject.seed, options={"task": task.id})
                named = (info.get("task"), info.get("split"))
                _require(named == (task.id, task.split), f"asked for {task.id!r} of {task.split}, info says {named}")
                start = (observation, info.get("state"))
                before = first.setdefault(task.id, start)
                _require(
                    start == before, f"task {task.id!r} with one seed starts in two ways: {_contrast(before, start)}"
                )
                for _ in range(3):  # leave traces
                    result = env.step(_random_action(env, info, random.Random(task.id)))
                    info = result[4]
                    if result[2] or result[3]:
                        break
    return f"{len(tasks)} tasks in {len({task.split for task in tasks})} splits, twice each, in different order"


def _processes(subject: Subject) -> str:
    with closing(subject.make()) as env:
        plan = [(task.id, subject.seed + i) for i, task in enumerate(subject.sample(env))]
    spec = portable(subject.spec)
    mine = transcripts(spec, subject.kwargs, plan)
    for hash_seed in (1, 2):
        arguments = (spec, subject.kwargs, plan)
        theirs = call(
            "gagpo.envs.check.promises:transcripts", *arguments, timeout=subject.deadline, hash_seed=hash_seed
        )
        for (task, seed), one, two in zip(plan, mine, theirs, strict=True):
            for turn, (line, other) in enumerate(itertools.zip_longest(one, two, fillvalue="(nothing)")):
                where = f"task {task!r}, seed {seed}, turn {turn} differs in another process"
                _require(line == other, f"{where}: {_contrast(line, other)}")
    return f"{sum(map(len, mine))} answers equal in 3 processes, each with its own order of sets"


def _contrast(one: object, two: object, width: int = 60) -> str:
    """The first place where the two differ, with what follows."""
    left, right = str(one), str(two)
    place = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    start = max(0, place - 20)
    return f"{left[start : start + width]!r} and {right[start : start + width]!r}"


def _expert(subject: Subject) -> str:
    try:
        env = subject.make(expert=True)
    except TypeError:
        return "none: the environment takes no expert=True"
    with closing(env):
        turns, played = 0, 0
        for task in subject.sample(env):
            _, info = env.reset(seed=subject.seed, options={"task": task.id})
            if info.get("expert_action") is None and not played:
                return "none: info['expert_action'] is None"
            over = False
            while not over:
                action = info.get("expert_action")
                _require(action is not None, f"the expert gives up task {task.id!r} after {info.get('turn')} turns")
                _, _, terminated, truncated, info = env.step(action)
                over = terminated or truncated
                turns += 1
            _require(info["success"], f"the expert does not solve task {task.id!r}")
            played += 1
    return f"solves {played} of {played} tasks in {turns / played:.1f} turns on average"


def _chance(subject: Subject) -> str:
    with closing(subject.make()) as env:
        tasks = subject.sample(env)
        solved = 0
        for i, task in enumerate(tasks):
            *_, (_, last) = _walk(env, task.id, subject.seed + i)
            solved += bool(last[4]["success"])
    _require(solved < len(tasks), f"random actions solve {solved} of {len(tasks)} tasks: nothing is left to learn")
    return f"random actions solve {solved} of {len(tasks)} tasks"


def _garbage(subject: Subject) -> str:
    with closing(subject.make()) as env:
        task = subject.sample(env)[0].id
    patience = min(30.0, subject.deadline)
    with Pool(subject.env_id, subject.kwargs, workers=1, step_deadline=patience, max_restarts=0) as pool:
        for name, action in GARBAGE.items():
            pool.reset(0, task, seed=subject.seed)
            (event,) = pool.wait()
            _require(event.kind == "reset", f"reset fails: {event.error}")
            pool.step(0, action)
            (event,) = pool.wait()
            _require(event.kind == "step", f"{name} as an action breaks it: {event.error}")
            _require(not event.info.get("success"), f"{name} as an action solves task {task!r}")
            if not event.terminated and not event.truncated:
                pool.step(0, _harmless(event))
                (event,) = pool.wait()
                _require(event.kind == "step", f"after {name} it breaks: {event.error}")
    return f"{len(GARBAGE)} kinds are answered: {', '.join(GARBAGE)}"


def _harmless(event: Event) -> str:
    return (event.info.get("admissible_actions") or ["ok"])[0]


def _after_the_end(subject: Subject) -> str:
    with closing(subject.make()) as env:
        _refuses_steps(env, "before the first reset")
        task = subject.sample(env)[0].id
        length = sum(1 for _ in _walk(env, task, subject.seed)) - 1
        _refuses_steps(env, f"after the end of task {task!r}")
        env.reset(seed=subject.seed, options={"task": task})
    return f"a step before the reset or after the end ({length} turns) raises ResetNeeded"


def _refuses_steps(env: gymnasium.Env, when: str) -> None:
    try:
        env.step("look")
    except ResetNeeded:
        return
    except Exception as error:
        seen = f"raises {describe(error)}"
    else:
        seen = "is answered"
    raise Broken(f"step() {when} {seen} instead of raising gymnasium.error.ResetNeeded")


def _unknown_task(subject: Subject) -> str:
    with closing(subject.make()) as env:
        known = subject.sample(env)[0].id
        wanted = known + "-no-such-task"
        try:
            env.reset(seed=subject.seed, options={"task": wanted})
        except (KeyError, ValueError) as error:
            message = str(error)
        else:
            raise Broken(f"the unknown task {wanted!r} is not refused")
        _require(wanted[:200] in message, f"the error does not name the unknown task: {message[:200]!r}")
        env.reset(seed=subject.seed, options={"task": known})
    return message[:200]


def _close(subject: Subject) -> str:
    for started in (False, True):
        env = subject.make()
        if started:
            env.reset(seed=subject.seed)
        for _ in range(3):
            env.close()
    return "close() three times, before and after a reset"


def _info(subject: Subject) -> str:
    answers = 0
    with closing(subject.make()) as env:
        for i, task in enumerate(subject.sample(env)):
            offered: list[str] | None = None
            for turn, (action, result) in enumerate(_walk(env, task.id, subject.seed + i)):
                where = f"task {task.id!r}, turn {turn}"
                _check_answer(result, turn, where)
                info = result[4]
                if turn and offered is not None:
                    _require(info["valid"], f"{where}: the admissible action {action[:80]!r} is called invalid")
                offered = info["admissible_actions"]
                answers += 1
    return f"{answers} answers hold {', '.join(_TYPES)}, as plain JSON"


def _check_answer(result: tuple, turn: int, where: str) -> None:
    observation, reward, terminated, truncated, info = result
    _require(type(observation) is str, f"{where}: the observation is {type(observation).__name__}, not str")
    observation.encode()  # text that cannot be written down is none
    _require(isinstance(reward, int | float) and math.isfinite(reward), f"{where}: the reward is {reward!r}")
    _require(type(terminated) is bool and type(truncated) is bool, f"{where}: terminated or truncated is not a bool")
    for key, types in _TYPES.items():
        _require(key in info, f"{where}: info has no {key!r}")
        kind = type(info[key])
        names = " or ".join(kind.__name__ for kind in types)
        _require(kind in types, f"{where}: info[{key!r}] is {kind.__name__}, not {names}")
    _require(info["turn"] == turn, f"{where}: info['turn'] is {info['turn']}")
    admissible = info["admissible_actions"]
    if admissible is not None:
        _require(all(type(action) is str for action in admissible), f"{where}: an admissible action is not a string")
        _require(len(set(admissible)) == len(admissible), f"{where}: an admissible action is listed twice")
        _require(admissible or terminated or truncated, f"{where}: no action is admissible, yet the episode goes on")
    try:
        json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Broken(f"{where}: info cannot be written as JSON: {error}") from None


PROMISES: dict[str, Callable[[Subject], str]] = {
    "construction": _construction,
    "gymnasium": _gymnasium,
    "tasks": _tasks,
    "splits are disjoint": _disjoint,
    "exact task": _exact_task,
    "same in every process": _processes,
    "info": _info,
    "expert": _expert,
    "chance": _chance,
    "garbage actions": _garbage,
    "end of an episode": _after_the_end,
    "unknown task": _unknown_task,
    "close": _close,
}
