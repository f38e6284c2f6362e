"""How fast is an environment: steps and resets, cold start, memory, and the pool with no, one and two processes.

    python -m benchmarks.environment gagpo/ALFWorld-v0 -k size=full [--reference size=small] [--seconds 5] [--json FILE]

Every number is measured on random walks over admissible actions, drawn from a seed, in fresh episodes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium
import psutil
from gymnasium.envs.registration import EnvSpec

from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import Table, text_width
from gagpo.envs.base import Kwargs
from gagpo.envs.check.fresh_process import call
from gagpo.envs.lookup import find_spec, portable
from gagpo.envs.pool import Event, WorkerPool
from gagpo.envs.pool.wire import plain

TASKS = 32  # how many of the split's tasks are played
SLOTS = 64  # episodes that one worker of the pool holds
ROUNDS = 3  # the pools take turns, and the median round counts: other processes disturb all of them alike
EXTRA_ENVIRONMENTS = 32
_START_SECONDS = 600.0

Report = dict[str, Any]  # plain data


def bench(
    env_id: str,
    env_kwargs: Kwargs | None = None,
    seconds: float = 5.0,
    workers: Sequence[int] = (0, 1, 2),
    reference_kwargs: Kwargs | None = None,
    split: str = "train",
    seed: int = 0,
) -> Report:
    """Measure ``env_id``, ``seconds`` for each rate, and in the same run the environment of ``reference_kwargs``.

    Returns plain data: ``environment`` and, with a reference, ``reference`` (see :func:`measure`), ``ratios`` of the
    two, and the ``machine``. Raises ValueError for arguments that cannot be right.
    """
    if seconds <= 0 or not workers or min(workers) < 0:
        raise InvalidArgument(
            f"seconds must be positive and workers some numbers >= 0: {seconds}, {list(workers)}", key="seconds"
        )
    spec = find_spec(env_id)
    report: Report = {
        "env": env_id,
        "split": split,
        "seconds": seconds,
        "environment": measure(spec, env_id, env_kwargs or {}, seconds, workers, split, seed),
    }
    if reference_kwargs is not None:
        reference = measure(spec, env_id, reference_kwargs, seconds, workers, split, seed)
        report["reference"] = reference
        report["ratios"] = {
            name: report["environment"][name] / reference[name]
            for name in ("steps_per_second", "resets_per_second", "cold_start_seconds", "mb_per_environment")
            if reference[name]
        }
    report["machine"] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    return report


def measure(
    spec: EnvSpec,
    env_id: str,
    env_kwargs: Kwargs,
    seconds: float,
    workers: Sequence[int],
    split: str,
    seed: int,
) -> Report:
    """The numbers of one environment.

    steps_per_second and resets_per_second: in one process, of the time spent in ``step`` and in ``reset``;
    first_reset_ms: the mean reset of a task that the process has not seen; cold_start_seconds: from starting the
    interpreter to the first observation; mb_first_environment and mb_per_environment: resident memory that the first
    environment takes over the bare package, and each further one; pool: by number of workers (0: in the caller's own
    process), ``steps_per_second`` of whole episodes (resets and the caller's choice of actions included), its ratio to
    the first number of workers, the ``caller_us_per_step`` of processor time that the pool's own process needs, and the
    steps per second of all processes' time, ``steps_per_processor_second``, which other processes disturb least.
    """
    kwargs = plain(dict(env_kwargs), "env_kwargs")
    with closing(gymnasium.make(spec, disable_env_checker=True, **kwargs)) as env:
        tasks = list(env.unwrapped.tasks(split).require().ids)  # type: ignore[attr-defined]
        random.Random(seed).shuffle(tasks)
        del tasks[TASKS:]
        result: Report = {"kwargs": kwargs, "tasks": len(tasks)}
        sampled = _sampled(env, seed)
        result |= _rates(env, tasks, sampled, seconds, seed)
    result |= call(
        "benchmarks.environment:footprint", portable(spec), kwargs, tasks, seed, time.time(), timeout=_START_SECONDS
    )
    result["pool"] = _pools(env_id, kwargs, tasks, sampled, seconds, workers, seed)
    return result


def table(report: Report) -> Table:
    """The report as a table for the terminal."""
    measures = {
        "steps/s": ("steps_per_second", "{:,.0f}"),
        "resets/s": ("resets_per_second", "{:,.0f}"),
        "first reset of a task, ms": ("first_reset_ms", "{:,.2f}"),
        "cold start, s": ("cold_start_seconds", "{:.2f}"),
        "first environment, MB": ("mb_first_environment", "{:.1f}"),
        "each further one, MB": ("mb_per_environment", "{:.2f}"),
    }
    columns = [report[name] for name in ("environment", "reference") if name in report]
    heads = [", ".join(f"{key}={value}" for key, value in column["kwargs"].items()) or "default" for column in columns]
    rows = [[label, *(form.format(column[name]) for column in columns)] for label, (name, form) in measures.items()]
    for number in columns[0]["pool"]:
        pools = [column["pool"][number] for column in columns]
        rates = [f"{pool['steps_per_second']:,.0f} ({pool['ratio']:.2f} x)" for pool in pools]
        rows.append([f"pool of {number}, steps/s", *rates])
        rows.append(["  per processor second", *(f"{pool['steps_per_processor_second']:,.0f}" for pool in pools)])
    if "ratios" in report:
        heads.append("ratio")
        names = [name for name, _ in measures.values()] + [""] * 2 * len(columns[0]["pool"])
        for row, name in zip(rows, names, strict=True):
            row.append(f"{report['ratios'][name]:,.2f}" if name in report["ratios"] else "")
    return Table([report["env"], *heads], rows)


# One process ----------------------------------------------------------------------------------------------------------


def _sampled(env: gymnasium.Env, seed: int) -> list[str]:
    """Actions for where the environment lists none, drawn beforehand: sampling one takes longer than many a step."""
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(256)]


def _rates(env: gymnasium.Env, tasks: list[str], sampled: list[str], seconds: float, seed: int) -> dict[str, float]:
    clock = time.perf_counter
    draw = random.Random(seed).random
    first = []
    end = clock() + seconds
    for task in tasks:
        begin = clock()
        env.reset(seed=seed, options={"task": task})
        first.append(clock() - begin)
        if clock() > end:
            break
    steps = resets = 0
    stepping = resetting = 0.0
    end = clock() + 2 * seconds
    for task in itertools.cycle(tasks[: len(first)]):
        # Whole episodes; only the calls themselves are timed, not the choice of actions.
        begin = clock()
        _, info = env.reset(seed=seed + resets, options={"task": task})
        resetting += clock() - begin
        resets += 1
        over = False
        while not over:
            choices = info.get("admissible_actions") or sampled
            action = choices[int(draw() * len(choices))]
            begin = clock()
            _, _, terminated, truncated, info = env.step(action)
            stepping += clock() - begin
            steps += 1
            over = terminated or truncated
        if clock() > end:
            break
    end = clock() + seconds
    while clock() < end:  # resets alone, for a rate that does not hang on the length of episodes
        for task in tasks[: len(first)]:
            begin = clock()
            env.reset(seed=seed + resets, options={"task": task})
            resetting += clock() - begin
            resets += 1
            if clock() > end:
                break
    return {
        "steps_per_second": steps / stepping,
        "resets_per_second": resets / resetting,
        "first_reset_ms": 1000 * statistics.mean(first),
    }


def footprint(spec: str, kwargs: Kwargs, tasks: list[str], seed: int, began: float) -> dict[str, float]:
    """Run in a fresh process: seconds from ``began`` (``time.time``) to the first observation, and memory in MB."""
    bare = _resident()
    envs = []

    def add(task: str) -> None:
        env = gymnasium.make(EnvSpec.from_json(spec), disable_env_checker=True, **kwargs)
        _, info = env.reset(seed=seed, options={"task": task})
        envs.append(env)
        if info.get("admissible_actions"):
            env.step(info["admissible_actions"][0])

    add(tasks[0])
    cold = time.time() - began
    one = _resident()
    for i in range(EXTRA_ENVIRONMENTS):
        add(tasks[(i + 1) % len(tasks)])
    many = _resident()
    for env in envs:
        env.close()
    return {
        "cold_start_seconds": cold,
        "mb_first_environment": one - bare,
        "mb_per_environment": (many - one) / EXTRA_ENVIRONMENTS,
    }


def _resident() -> float:
    """This process's resident memory in MB: now where the system tells, else at its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# The pool -------------------------------------------------------------------------------------------------------------


class _PoolWalk:
    """Random walks through a pool whose slots never rest."""

    def __init__(self, pool: WorkerPool, slots: int, tasks: list[str], sampled: list[str], seed: int):
        self._pool = pool
        self._slots = slots
        self._tasks = itertools.cycle(enumerate(tasks, seed))
        self._sampled = sampled
        self._random = random.Random(seed).random
        for slot in range(slots):
            self._reset(slot)
        self._waiting = self._all()

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Walk for so long; returns steps per second, processor seconds per step here, and in all processes."""
        steps = 0
        enough = max(1, self._slots // 2)
        processor, theirs, begin = time.process_time(), self._workers_seconds(), time.perf_counter()
        end = begin + seconds
        self._go_on(self._waiting)
        while time.perf_counter() < end:
            events = self._pool.wait(at_least=enough)
            self._go_on(events)
            steps += sum(event.kind == "step" for event in events)
        self._waiting = self._all()
        steps += sum(event.kind == "step" for event in self._waiting)
        elapsed, processor = time.perf_counter() - begin, time.process_time() - processor
        if not steps:
            raise InvalidArgument(f"not one step came in {seconds:g} s", key="seconds", advice="give it more seconds")
        return steps / elapsed, processor / steps, (processor + self._workers_seconds() - theirs) / steps

    def _workers_seconds(self) -> float:
        times = [psutil.Process(process).cpu_times() for process in self._pool.processes]
        return sum(one.user + one.system for one in times)

    def _all(self) -> list[Event]:
        return self._pool.wait(at_least=self._slots)

    def _go_on(self, events: list[Event]) -> None:
        for slot, kind, _, _, terminated, truncated, info, error in events:
            # A slot never rests: its episode goes on, or the next one begins.
            if kind == "failed":
                raise InvalidArgument(f"the environment breaks: {error}")
            if terminated or truncated:
                self._reset(slot)
                continue
            choices = info.get("admissible_actions") or self._sampled
            self._pool.step(slot, choices[int(self._random() * len(choices))])

    def _reset(self, slot: int) -> None:
        seed, task = next(self._tasks)
        self._pool.reset(slot, task, seed)


def _pools(
    env_id: str,
    kwargs: Kwargs,
    tasks: list[str],
    sampled: list[str],
    seconds: float,
    workers: Sequence[int],
    seed: int,
) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        walks = {}
        for number in workers:
            pool = stack.enter_context(WorkerPool(env_id, kwargs, workers=number))
            walks[number] = _PoolWalk(pool, SLOTS * max(number, 1), tasks, sampled, seed)
        rounds = [{number: walk.run(seconds / ROUNDS) for number, walk in walks.items()} for _ in range(ROUNDS)]
    base = workers[0]
    return {
        str(number): {
            "steps_per_second": statistics.median(row[number][0] for row in rounds),
            "ratio": statistics.median(row[number][0] / row[base][0] for row in rounds),
            "caller_us_per_step": 1e6 * statistics.median(row[number][1] for row in rounds),
            "steps_per_processor_second": 1 / statistics.median(row[number][2] for row in rounds),
        }
        for number in workers
    }


def main() -> None:
    from gagpo.cli.options import values

    parser = argparse.ArgumentParser(description="Measure the speed and memory of an environment.")
    parser.add_argument("env", help="environment id")
    parser.add_argument("-k", dest="kwargs", action="append", help="name=value, an argument of the environment")
    parser.add_argument("--reference", action="append", help="name=value, of a second environment in the same run")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    own = values(options.kwargs)
    reference = own | values(options.reference) if options.reference else None
    report = bench(options.env, own, options.seconds, reference_kwargs=reference)
    print(*table(report).lines(text_width()), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
