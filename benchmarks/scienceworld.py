"""Steps per second of gagpo/ScienceWorld-v0 next to the bare package, over the same gold paths in the same run.

    python -m benchmarks.scienceworld [--tasks 8] [--rounds 3]

Both run the same jar. ``bare`` is ``scienceworld.ScienceWorldEnv.step``, which lists the valid actions in every step;
``bare simulator`` is the call below it, without score, inventory or valid actions. Every variant follows the gold paths
of the same tasks in turn, after one path to warm Java up; the median round counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from gagpo.agents.setup import make_env
from gagpo.base.tables import Table, text_width
from gagpo.envs.scienceworld.experiment import Experiment, Variation
from gagpo.envs.scienceworld.simulator import Simulator
from gagpo.envs.scienceworld.variations import VARIATIONS

Walk = Callable[[Variation, list[str]], float]
"""Seconds in the steps along a gold path."""

LONGEST_PATH = 60  # gold actions: longer tasks would decide the number


def gold_paths(count: int) -> list[tuple[Variation, list[str]]]:
    """The gold paths of the first variation of ``count`` tasks."""
    simulator = Simulator()
    paths = []
    for task in VARIATIONS:
        if task.startswith("mendelian"):
            continue  # their gold path alone takes longer than all others
        start = Variation(task, 0)
        gold = Experiment(simulator).load(start, with_gold=True)
        if len(gold) <= LONGEST_PATH:
            paths.append((start, gold))
        if len(paths) == count:
            break
    simulator.close()
    return paths


def walk(reset: Callable[[Variation], Any], step: Callable[[str], Any]) -> Walk:
    """A walk along a path: ``reset`` is not timed, ``step`` is."""

    def seconds(start: Variation, gold: list[str]) -> float:
        reset(start)
        begin = time.perf_counter()
        for action in gold:
            step(action)
        return time.perf_counter() - begin

    return seconds


def of_suite(env: Any) -> Walk:
    inner = env.unwrapped
    return walk(lambda start: inner.reset(options={"task": f"{start.task}-{start.variation:04d}"}), _act(inner))


def _act(env: Any) -> Callable[[str], Any]:
    return lambda action: env.act(action)  # the gold path ends before a turn limit would matter


def main() -> None:
    import scienceworld

    parser = argparse.ArgumentParser(description="Compare the speed of ScienceWorld with the bare package.")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths = gold_paths(options.tasks)
    bare = scienceworld.ScienceWorldEnv("", envStepLimit=10_000)

    def load(start: Variation) -> None:
        bare.load(*start)
        bare.reset()

    with closing(make_env("scienceworld")) as plain, closing(make_env("scienceworld", {"admissible": True})) as listed:
        walks = {
            "bare simulator": walk(load, bare.server.step),
            "bare": walk(load, bare.step),
            "gagpo, admissible=true": of_suite(listed),
            "gagpo": of_suite(plain),
        }
        for seconds in walks.values():
            seconds(*paths[0])
        steps = sum(len(gold) for _, gold in paths)
        rates: dict[str, list[float]] = {name: [] for name in walks}
        for _ in range(options.rounds):
            for name, seconds in walks.items():
                rates[name].append(steps / sum(seconds(*path) for path in paths))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rows = [[name, f"{rate:,.0f}", f"{rate / medians['bare']:.1f} x"] for name, rate in medians.items()]
    print(*Table(["variant", "steps/s", "to bare"], rows).lines(text_width()), sep="\n")


if __name__ == "__main__":
    main()
