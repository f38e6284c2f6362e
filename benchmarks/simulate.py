"""Iterations as `gagpo simulate` predicts them beside the same iterations measured, on other settings than it was told.

    python benchmarks/simulate.py [--iterations 10] [--asleep]

The rates of one small run (see `benchmarks/overlap.py`) predict runs with more episodes, fewer workers, faster worlds,
without lockstep, with `ahead`, and with two ranks. The target is 15 %.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap import (
    BASE,
    LEFT_OUT,
    fall_asleep,
    make_model,
    predicted,
    run_in_ranks,
    settings_of,
    timed,
    whole_cycles,
)

from gagpo.planning.simulate.measure import measure
from gagpo.runs.metrics import metric_rows
from gagpo.settings import RunSettings

TARGET = 0.15
OTHERS: dict[str, dict[str, Any]] = {
    "as measured": {},
    "twice the episodes": {"rollout": {"samples": 8}},
    "half the workers": {"rollout": {"workers": 4}},
    "worlds of 20 ms": {"environment": {"kwargs": {"max_turns": 8, "seconds": 0.02}}},
    "no lockstep": {"rollout": {"lockstep": False}},
    "ahead 1": {"rollout": {"lockstep": False, "ahead": 1}},
    "two ranks": {"processes": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--asleep", action="store_true", help="as in benchmarks/overlap.py")
    options = parser.parse_args()
    if options.asleep:
        fall_asleep()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder)
        _, base = timed(settings_of(model, options.iterations), folder / "base")
        found = measure(base)
        print(f"{'':20s}{'measured, s':>14s}{'predicted, s':>14s}{'off by':>9s}", flush=True)
        for number, (title, changes) in enumerate(OTHERS.items()):
            settings = settings_of(model, options.iterations, **changes)
            place = folder / f"run-{number}"
            run = timed(settings, place)[1] if settings.processes == 1 else run_in_ranks(settings, place)
            seconds = iteration_seconds(run, settings)
            told = found
            if "environment" in changes:  # the only rate that the settings tell
                slept = BASE["environment"]["kwargs"]["seconds"] - changes["environment"]["kwargs"]["seconds"]
                rates = replace(found.rates, environment_seconds=found.rates.environment_seconds - slept)
                told = replace(found, rates=rates)
            _print(title, seconds, predicted(told, settings).seconds)


def iteration_seconds(folder: Path, settings: RunSettings) -> float:
    """Collecting and updating, by the run's own metrics: its log and its files are not simulated."""
    rows = metric_rows(folder / "metrics.jsonl")[0]
    spans = [
        (after["tokens_total"] - before["tokens_total"]) / after["tokens_per_second"]
        for before, after in itertools.pairwise(rows)
    ]
    return statistics.fmean(whole_cycles(spans[LEFT_OUT - 1 :], settings))


def _print(title: str, measured: float, told: float) -> None:
    off = told / measured - 1
    mark = "" if abs(off) <= TARGET else "  beyond the target"
    print(f"{title:20s}{measured:14.3f}{told:14.3f}{100 * off:+8.0f} %{mark}", flush=True)


if __name__ == "__main__":
    main()
