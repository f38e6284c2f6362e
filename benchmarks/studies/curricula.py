"""Curricula against the uniform order, in two environments, from starters, at equal turns.

    python -m benchmarks.studies.curricula run      every curriculum of every environment, seed by seed
    python -m benchmarks.studies.curricula table    success on unseen tasks, and the leads over uniform

Rows go to ``lab/studies/curricula.jsonl``; what stands there is not run again, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished
from gagpo.base.tables import Table
from gagpo.eval.statistics import mean_over_seeds
from gagpo.settings import load

TURNS = {"maths-first": 6_000, "webshop-first": 6_000}
"""The configs, and how many environment turns a run of each is given."""

CURRICULA = ("uniform", "by_success")


def run(options: argparse.Namespace, rows: Path) -> None:
    """Seed by seed, every curriculum of every environment."""
    for seed in options.seeds:
        for config, turns in TURNS.items():
            for curriculum in CURRICULA:
                if not has_row(rows, config=config, curriculum=curriculum, seed=seed):
                    append_row(rows, row_of(options, config, curriculum, seed, options.turns or turns))


def row_of(options: argparse.Namespace, config: str, curriculum: str, seed: int, turns: int) -> dict[str, Any]:
    """The row of one run."""
    own = [f"name={config}-{curriculum}-s{seed}", f"seed={seed}", f"curriculum={curriculum}"]
    length = [
        f"training.turns={turns}",
        "training.iterations=1000",
        "evaluation.every=0",
        "optimizer.schedule=constant",
    ]
    run = finished(load(config, [*length, *options.overrides, *own]), options.runs)
    ends = {one.stage: one.result for one in run.evaluations if one.stage in ("before", "after")}
    row = {"config": config, "curriculum": curriculum, "seed": seed, "turns": run.metrics[-1]["turns_total"]}
    rates = {stage: result.success.value for stage, result in ends.items()}
    groups = {"zero_groups": math.fsum(run.series("zero_groups")[1]) / len(run.metrics)}
    panel = ends["after"].panel
    return {**row, **rates, **groups, "split": panel.split, "tasks": panel.tasks, "tries": panel.tries}


def table(path: Path) -> list[str]:
    """Success after training by curriculum, and the lead over uniform in points over shared seeds."""
    found = list(read_rows(path))
    rows = []
    for config, curriculum in dict.fromkeys((row["config"], row["curriculum"]) for row in found):
        mine = {row["seed"]: row for row in found if (row["config"], row["curriculum"]) == (config, curriculum)}
        base = {row["seed"]: row for row in found if (row["config"], row["curriculum"]) == (config, "uniform")}
        shared = sorted(mine.keys() & base.keys())
        lead = "-"
        if curriculum != "uniform" and shared:
            one = mean_over_seeds([100 * (mine[seed]["after"] - base[seed]["after"]) for seed in shared])
            lead = f"{one.value:+.1f} [{one.low:+.1f}, {one.high:+.1f}]"
        means = [math.fsum(row[key] for row in mine.values()) / len(mine) for key in ("before", "after", "zero_groups")]
        rows.append([config, curriculum, str(len(mine)), *(f"{100 * mean:.1f}" for mean in means), lead])
    header = ["config", "curriculum", "seeds", "before %", "after %", "zero groups %", "lead over uniform"]
    return Table(header, rows).lines(110)


STUDY = Study("curricula", __doc__, run, table)
STUDY.options.add_argument("--turns", type=int, help="of every run, in place of its config's")

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
