"""What a credit is worth to a learner: many seeds of a small policy, equal turns, one objective.

    python -m benchmarks.studies.seeds sweep    every method at every learning rate, on training tasks, seeds of its own
    python -m benchmarks.studies.seeds run      every method at its best rate; ends measured on a panel never chosen on
    python -m benchmarks.studies.seeds table    means with intervals, paired differences from GAGPO, or from --base

Rows go to ``lab/studies/seeds-sweep.jsonl`` and ``seeds.jsonl``; what stands there is not run again, so that a study
may be interrupted at any time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.studies.environments import ENVIRONMENTS_TRIED, play, start, success_rate
from benchmarks.studies.learner import METHODS, train
from benchmarks.studies.rows import FOLDER, append_row, has_row, read_rows
from gagpo.base.tables import Table
from gagpo.eval.statistics import area_under_curve, holm, mean_over_seeds, paired_t

RATES = (0.01, 0.03, 0.1)
SWEEP_SEEDS = (901, 902)
SUCCESS = 0.25
"""Where every run begins, on training tasks."""

PANEL_TASKS, PANEL_TRIES = 48, 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    torch.set_num_threads(1)
    starts = Path(os.environ.get("GAGPO_DATA") or "data") / "studies"
    if options.command == "sweep":
        sweep(options, starts)
    elif options.command == "run":
        run(options, starts)
    else:
        for env in options.environments:
            print("\n".join(table(options.rows / "seeds.jsonl", env, options.base)))
    return 0


def sweep(options: argparse.Namespace, starts: Path) -> None:
    for env in options.environments:
        for seed in SWEEP_SEEDS:
            for method in options.methods:
                for rate in RATES:
                    once(options.rows / "seeds-sweep.jsonl", starts, env, method, rate, seed, panel=False)


def run(options: argparse.Namespace, starts: Path) -> None:
    """Seed by seed, so that an interrupted study has all methods alike."""
    for seed in range(1, options.seeds + 1):
        for env in options.environments:
            for method in options.methods:
                rate = best_rate(options.rows / "seeds-sweep.jsonl", env, method)
                once(options.rows / "seeds.jsonl", starts, env, method, rate, seed, panel=True)


def once(rows: Path, starts: Path, env: str, method: str, rate: float, seed: int, panel: bool) -> None:
    """One run, unless its row is there."""
    what: dict[str, Any] = {"environment": env, "method": method, "rate": rate, "seed": seed}
    if has_row(rows, **what):
        return
    policy, place = start(env, SUCCESS, starts), ENVIRONMENTS_TRIED[env]
    progress = list(train(policy, place, method, rate, seed))
    turns, success = [one.turns for one in progress], [one.success for one in progress]
    row = {
        **what,
        "area": area_under_curve(turns, success),
        "turns": turns,
        "success": [round(one, 4) for one in success],
        "stats": {name: float(np.mean([one.stats[name] for one in progress])) for name in sorted(progress[0].stats)},
    }
    if panel:
        ended = play(policy, place, place.panel, PANEL_TASKS, PANEL_TRIES, "panel", seed)
        row["panel"] = success_rate(ended)
    append_row(rows, row)
    print(f"{env:6} {method:18} rate {rate:<5} seed {seed:<3} area {row['area']:.3f}", flush=True)


def best_rate(rows: Path, env: str, method: str) -> float:
    """The rate with the largest mean area in the sweep of this environment, or of all if this one was not swept."""
    own = [row for row in read_rows(rows) if row["method"] == method and row["environment"] == env]
    found = own or [row for row in read_rows(rows) if row["method"] == method]
    if not found:
        raise SystemExit(f"{method} was not swept: run `python -m benchmarks.studies.seeds sweep` first")
    return max(RATES, key=lambda rate: np.mean([row["area"] for row in found if row["rate"] == rate] or [-1.0]))


def table(rows: Path, env: str, base: str = "gagpo") -> list[str]:
    """Area and panel of each method over seeds; its difference in area from ``base`` over the seeds that both have."""
    found = [row for row in read_rows(rows) if row["environment"] == env]
    methods = [method for method in METHODS if any(row["method"] == method for row in found)]
    by_seed = {
        method: {row["seed"]: row for row in found if row["method"] == method}  # a seed is run at one rate
        for method in methods
    }
    others = [method for method in methods if method != base]
    gaps = {method: _gaps(by_seed[method], by_seed.get(base, {})) for method in others}
    tested = [method for method in others if len(gaps[method]) > 1]
    corrected = dict(zip(tested, holm([paired_t(gaps[method]) for method in tested]), strict=True))
    lines = []
    for method in methods:
        # Mean and interval over seeds; the paired difference where there is one.
        own = list(by_seed[method].values())
        gap = _percent(gaps[method]) if method in corrected else ""
        lines.append(
            [
                method,
                f"{own[0]['rate']:g}",
                str(len(own)),
                _percent([row["area"] for row in own]),
                _percent([row["panel"] for row in own]),
                gap,
                f"{corrected[method]:.3f}" if method in corrected else "",
            ]
        )
    head = ["method", "rate", "seeds", "area, %", "panel at the end, %", f"area less {base}'s", "p (Holm)"]
    return [f"\n{env}\n", *Table(head, lines).markdown()]


def _gaps(ours: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]]) -> list[float]:
    return [ours[seed]["area"] - theirs[seed]["area"] for seed in ours if seed in theirs]


def _percent(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{100 * values[0]:.1f}" if values else ""
    found = mean_over_seeds(values)
    return f"{100 * found.value:.1f} ± {50 * (found.high - found.low):.1f}"


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a credit is worth to a learner.")
    parser.add_argument("command", choices=("sweep", "run", "table"))
    parser.add_argument(
        "--environments", nargs="+", choices=list(ENVIRONMENTS_TRIED), default=["small", "fresh", "shop"]
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--base", choices=list(METHODS), default="gagpo", help="what the others are compared to")
    parser.add_argument("--rows", type=Path, default=FOLDER)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
