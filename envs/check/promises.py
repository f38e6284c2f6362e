"""The promises of an environment, each with a function that checks it.

A function returns what it observed. It raises :class:`CheckFailed` if the promise is not kept, :class:`NotApplicable`
if it does not apply to this environment, and :class:`CheckWarning` for a warning.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from gagpo.envs.base import Info
from gagpo.envs.check.beginnings import beginnings, judge
from gagpo.envs.check.fresh_process import call
from gagpo.envs.check.leaks import leaks
from gagpo.envs.check.markov import markov
from gagpo.envs.check.subject import (
    CheckFailed,
    CheckWarning,
    Start,
    StepResult,
    Subject,
    contrast,
    random_action,
    random_play,
    require,
    walk,
)
from gagpo.envs.check.tool_calls import tool_calls
from gagpo.envs.plain import NOT_GUARANTEED, PlainEnv
from gagpo.envs.pool import WorkerPool
from gagpo.envs.pool.wire import describe
from gagpo.envs.tools import separate

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


def _construction(subject: Subject) -> str:
    begin = time.perf_counter()
    with closing(subject.make()) as env:
        has_tasks = callable(getattr(env.unwrapped, "tasks", None))
        require(has_tasks, "it has no method tasks(split), which training and evaluation need: see gagpo.envs.TextEnv")
        caveat = f"; {NOT_GUARANTEED}" if isinstance(env.unwrapped, PlainEnv) else ""
        return f"{type(env.unwrapped).__name__} built in {time.perf_counter() - begin:.2f} s{caveat}"


def _gymnasium(subject: Subject) -> str:
    with closing(subject.make()) as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped)
    complaints = [" ".join(str(warning.message).split()) for warning in caught]
    complaints = [text for text in complaints if "render fps" not in text]  # text has no frame rate
    return f"check_env passes{', but warns: ' if complaints else ''}{'; '.join(complaints)[:300]}"


def _tasks(subject: Subject) -> str:
    with closing(subject.make()) as env, closing(subject.make()) as other_env:
        splits = subject.splits(env)
        other_splits = subject.splits(other_env)
    summaries = []
    for split, tasks in splits.items():
        ids = [task.id for task in tasks]
        require(ids == sorted(set(ids)), f"the task ids of split {split!r} are not sorted, or not unique")
        require(all(task.split == split for task in tasks), f"a task of split {split!r} names another split")
        require(tasks.hash == other_splits[split].hash, f"split {split!r} has a different hash in another instance")
        summaries.append(f"{split}: {len(ids)} tasks{subject.in_clusters(ids)}, {tasks.hash}")
    require(any(len(tasks) for tasks in splits.values()), f"every split is empty. {next(iter(splits.values())).advice}")
    return "; ".join(summaries)


def _disjoint(subject: Subject) -> str:
    with closing(subject.make()) as env:
        splits = subject.splits(env)
    for (first_name, first_tasks), (second_name, second_tasks) in itertools.combinations(splits.items(), 2):
        shared = {task.id for task in first_tasks} & {task.id for task in second_tasks}
        require(
            not shared, f"{first_name} and {second_name} share {len(shared)} tasks, such as {min(shared, default='')!r}"
        )
        contents = {task.digest: task.id for task in first_tasks if task.digest}
        equal_contents = [(contents[task.digest], task.id) for task in second_tasks if task.digest in contents]
        require(
            not equal_contents,
            f"{first_name} and {second_name} share {len(equal_contents)} contents with different ids, such as "
            f"{equal_contents[:1]}",
        )
    num_without_digest = sum(not task.digest for tasks in splits.values() for task in tasks)
    summaries = [f"{', '.join(splits)}: no id and no digest twice"]
    if num_without_digest:
        summaries.append(f"{num_without_digest} tasks have no digest")
    return judge("; ".join(summaries), beginnings(subject, splits))


def _exact_task(subject: Subject) -> str:
    with closing(subject.make()) as env:
        starts = [start._replace(seed=subject.seed) for start in subject.starts(env)]
        first_result: dict[Start, tuple[object, object]] = {}
        for attempt in range(2):
            for start in starts if attempt else reversed(starts):
                observation, info = env.reset(seed=start.seed, options=start.options)
                requested_task = (start.task.id, start.task.split)
                info_task = (info.get("task"), info.get("split"))
                require(
                    info_task == requested_task,
                    f"asked for {requested_task[0]!r} of {requested_task[1]}, info says {info_task}",
                )
                result_of_reset = (observation, info.get("state"))
                previous = first_result.setdefault(start, result_of_reset)
                require(
                    result_of_reset == previous,
                    f"{start.name} starts in two ways with one seed: {contrast(previous, result_of_reset)}",
                )
                for _ in range(3):  # a few turns, whose traces the next reset must remove
                    result = env.step(random_action(env, info, random.Random(start.name)))
                    info = result[4]
                    if result[2] or result[3]:
                        break
    splits = {start.task.split for start in starts}
    return f"{len(starts)} tasks in {len(splits)} splits, twice each, in different orders"


def _processes(subject: Subject) -> str:
    with closing(subject.make()) as env:
        starts = subject.starts(env)
        local_transcripts = [random_play(env, start) for start in starts]
    number = sum(map(len, local_transcripts))
    plan = [[start.task.id, start.seed] for start in starts]
    for hash_seed in (1, 2):
        arguments = (subject.portable_spec, subject.kwargs, plan)
        remote_transcripts = call(
            "gagpo.envs.check.subject:transcripts", *arguments, timeout=subject.deadline, hash_seed=hash_seed
        )
        _compare(starts, local_transcripts, remote_transcripts, "in another process")
    return f"{number} results equal in 3 processes with different hash seeds"


def _compare(
    starts: list[Start], local_transcripts: list[list[str]], remote_transcripts: list[list[str]], place: str
) -> None:
    for start, local_lines, remote_lines in zip(starts, local_transcripts, remote_transcripts, strict=True):
        for turn, (local_line, remote_line) in enumerate(
            itertools.zip_longest(local_lines, remote_lines, fillvalue="(nothing)")
        ):
            where = f"{start.name}, seed {start.seed}, turn {turn} differs {place}"
            require(local_line == remote_line, f"{where}: {contrast(local_line, remote_line)}")


def _expert(subject: Subject) -> str:
    try:
        env = subject.make(expert=True)
    except TypeError:
        return "none: the environment does not accept expert=True"
    with closing(env):
        turns = solved = 0
        late: list[str] = []  # tasks that the expert does not solve within the turn limit
        for task in subject.sample(env):
            _, info = env.reset(seed=subject.seed, options={"task": task.id})
            # Without an action at the first task, there is no expert. Without an action later, the expert has failed.
            if info.get("expert_action") is None and not solved and not late:
                return "none: info['expert_action'] is None"
            success, truncated, length = _follow_expert(env, info, task.id)
            require(success or truncated, f"the expert does not solve task {task.id!r}")
            turns += length
            solved += success
            late += [] if success else [task.id]
        if late:
            _require_solved_later(env, subject, late)
    return f"solves {solved} of {solved} tasks in {turns / solved:.1f} turns on average"


def _follow_expert(env: gymnasium.Env, info: Info, task_id: str) -> tuple[bool, bool, int]:
    """Whether the expert solves the task that was just reset, whether a limit stopped it, and its number of turns."""
    turns = 0
    while True:
        action = info.get("expert_action")
        require(action is not None, f"the expert gives up task {task_id!r} after {info.get('turn')} turns")
        for call_text in separate(str(action)):  # one step per call
            _, _, terminated, truncated, info = env.step(call_text)
            turns += 1
            if terminated or truncated:
                return bool(info["success"]), truncated, turns


def _require_solved_later(env: gymnasium.Env, subject: Subject, late: list[str]) -> None:
    """Raise CheckWarning if the expert solves these tasks with more turns, else CheckFailed.

    The limit may be the user's choice, which is not a fault of the environment.
    """
    inner: Any = env.unwrapped
    limit = getattr(inner, "max_turns", 0)
    require(limit > 0, f"the expert does not solve task {late[0]!r}")
    inner.max_turns = 10 * limit
    for task_id in late:
        _, info = env.reset(seed=subject.seed, options={"task": task_id})
        require(_follow_expert(env, info, task_id)[0], f"the expert does not solve task {task_id!r}")
    raise CheckWarning(
        f"the expert needs more than max_turns={limit} turns for {len(late)} of the sampled tasks, such as "
        f"{late[0]!r}: raise max_turns, or expect an agent to fail there, too"
    )


def _chance(subject: Subject) -> str:
    with closing(subject.make()) as env:
        starts = subject.starts(env)
        solved = 0
        for start in starts:
            *_, (_, result) = walk(env, start)
            solved += bool(result[4]["success"])
    require(solved < len(starts), f"random actions solve all {len(starts)} tasks: nothing is left to learn")
    return f"random actions solve {solved} of {len(starts)} tasks"


def _garbage(subject: Subject) -> str:
    with closing(subject.make()) as env:
        (start, *_) = subject.starts(env)
    patience = min(30.0, subject.deadline)
    with WorkerPool(subject.name, subject.kwargs, workers=1, step_timeout=patience, max_restarts=0) as pool:
        for name, action in GARBAGE.items():
            # Each kind in a new episode, which must continue afterwards unless it has ended.
            pool.reset(0, start.task.id, seed=subject.seed)
            (event,) = pool.wait()
            require(event.kind == "reset", f"reset fails: {event.error}")
            pool.step(0, action)
            (event,) = pool.wait()
            require(event.kind == "step", f"{name} as an action breaks it: {event.error}")
            require(not event.info.get("success"), f"{name} as an action solves {start.name}")
            if not event.terminated and not event.truncated:
                pool.step(0, str((event.info.get("admissible_actions") or ["ok"])[0]))
                (event,) = pool.wait()
                require(event.kind == "step", f"after {name} it breaks: {event.error}")
    return f"{len(GARBAGE)} kinds are answered: {', '.join(GARBAGE)}"


def _after_the_end(subject: Subject) -> str:
    with closing(subject.make()) as env:
        (start, *_) = subject.starts(env)
        _require_reset_needed(env, "before the first reset")
        length = sum(1 for _ in walk(env, start)) - 1
        _require_reset_needed(env, f"after the end of {start.name}")
        env.reset(seed=start.seed, options=start.options)
    return f"a step before the reset or after the end ({length} turns) raises ResetNeeded"


def _require_reset_needed(env: gymnasium.Env, when: str) -> None:
    try:
        env.step("look")
    except ResetNeeded:
        return
    except Exception as error:
        result = f"raises {describe(error)}"
    else:
        result = "returns"
    raise CheckFailed(f"step() {when} {result} instead of raising gymnasium.error.ResetNeeded")


def _unknown_task(subject: Subject) -> str:
    with closing(subject.make()) as env:
        known_id = subject.sample(env)[0].id
        unknown_id = known_id + "-no-such-task"
        try:
            env.reset(seed=subject.seed, options={"task": unknown_id})
        except (KeyError, ValueError) as error:
            message = str(error)
        else:
            raise CheckFailed(f"the unknown task {unknown_id!r} raises no error")
        require(unknown_id[:200] in message, f"the error does not name the unknown task: {message[:200]!r}")
        env.reset(seed=subject.seed, options={"task": known_id})
    return message[:200]


def _close(subject: Subject) -> str:
    for after_reset in (False, True):
        env = subject.make()
        if after_reset:
            env.reset(seed=subject.seed)
        for _ in range(3):
            env.close()
    return "close() three times, before and after a reset"


def _info(subject: Subject) -> str:
    number = 0
    with closing(subject.make()) as env:
        for start in subject.starts(env):
            offered: list[str] | None = None
            for turn, (action, result) in enumerate(walk(env, start)):
                where = f"{start.name}, turn {turn}"
                number += 1
                _check_result(result, turn, where)
                info = result[4]
                if turn and offered is not None:
                    require(info["valid"], f"{where}: the admissible action {action[:80]!r} is called invalid")
                offered = info["admissible_actions"]
    return f"{number} results have {', '.join(_TYPES)}, as plain JSON"


def _check_result(result: StepResult, turn: int, where: str) -> None:
    observation, reward, terminated, truncated, info = result
    require(type(observation) is str, f"{where}: the observation is {type(observation).__name__}, not str")
    observation.encode()  # raises for lone surrogates
    require(isinstance(reward, int | float) and math.isfinite(reward), f"{where}: the reward is {reward!r}")
    require(type(terminated) is bool and type(truncated) is bool, f"{where}: terminated or truncated is not a bool")
    for key, types in _TYPES.items():
        require(key in info, f"{where}: info has no {key!r}")
        value_type = type(info[key])
        names = " or ".join(value_type.__name__ for value_type in types)
        require(value_type in types, f"{where}: info[{key!r}] is {value_type.__name__}, not {names}")
    require(info["turn"] == turn, f"{where}: info['turn'] is {info['turn']}")
    admissible = info["admissible_actions"]
    if admissible is not None:
        require(all(type(action) is str for action in admissible), f"{where}: an admissible action is not a string")
        require(len(set(admissible)) == len(admissible), f"{where}: an admissible action is listed twice")
        require(admissible or terminated or truncated, f"{where}: no action is admissible, but the episode continues")
    try:
        json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"{where}: info cannot be written as JSON: {error}") from None


PROMISES: dict[str, Callable[[Subject], str]] = {
    "construction": _construction,
    "gymnasium": _gymnasium,
    "tasks": _tasks,
    "splits are disjoint": _disjoint,
    "exact task": _exact_task,
    "same in every process": _processes,
    "info": _info,
    "equal states": markov,
    "nothing leaks": leaks,
    "expert": _expert,
    "chance": _chance,
    "garbage actions": _garbage,
    "tool calls": tool_calls,
    "end of an episode": _after_the_end,
    "unknown task": _unknown_task,
    "close": _close,
}
