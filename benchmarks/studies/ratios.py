"""Single-turn algorithms where ratios leave 1: four passes over every batch, a large rate, no limit on the step.

    python -m benchmarks.studies.ratios run      every algorithm from one single-turn model, seed by seed
    python -m benchmarks.studies.ratios table    means over seeds, and differences from GRPO

Problems in one turn without a calculator, equally many answers for every row; sixteen steps an iteration, so that
old and new policy differ within it. The model is that of ``configs/math-single-small.yaml``, made by its SFT if it is
missing. ``training.target_kl`` and ``optimizer.scale_by_groups``, which limit steps, are off: the study compares what
each algorithm's own gate and controllers do about large steps. One row has them on. Rows go to
``lab/studies/ratios.jsonl``; a run that has a row is not repeated.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished
from gagpo.base.tables import Table
from gagpo.eval.runs import Run
from gagpo.eval.statistics import mean_over_seeds
from gagpo.settings import load

HELD = "grpo, held"
"""GRPO with what is off for all others: the default steps."""

ROWS = ("grpo", "dapo", "gspo", "sapo", "gmpo", "cispo", "apmpo", "agpo_adaptive", "agpo_asymmetric", HELD)
ANSWERS = 2560
"""Answers that a run samples, probes and thrown away groups included: twenty iterations of 16 problems x 8."""

COMMON = (
    *("rollout.tasks=16", "rollout.group_size=8"),
    *(f"training.max_turns={ANSWERS}", "training.iterations=40", "training.epochs=4", "training.minibatches=4"),
    "optimizer.lr_scheduler=constant",
    *("evaluation.splits=[test]", "evaluation.every=0", "evaluation.episodes_per_task=8", "evaluation.temperature=1.0"),
)
FREE = ("training.target_kl=null", "optimizer.scale_by_groups=false")
ENDS = 3  # iterations at the beginning and at the end over which entropy is a mean


def run(options: argparse.Namespace, rows: Path) -> None:
    """Every row of the table at every rate, seed by seed."""
    for seed in options.seeds:
        for rate in options.rates:
            for row in options.only:
                if not has_row(rows, algorithm=row, rate=rate, seed=seed):
                    once(options, rows, row, rate, seed)


def once(options: argparse.Namespace, rows: Path, algorithm: str, rate: str, seed: int) -> None:
    """One run, and its row."""
    name = "".join(c if c.isalnum() else "-" for c in algorithm)
    own = [f"name={name}-{rate}-s{seed}", f"seed={seed}", f"optimizer.learning_rate={rate}"]
    preset = f"algorithm={{preset: {algorithm.split(',')[0]}, kl: {{coefficient: 0.0}}}}"
    own += FREE if algorithm != HELD else ()
    before = f"evaluation.before={str(algorithm == ROWS[0]).lower()}"
    played = finished(load("math-single-small", [*COMMON, preset, before, *options.overrides, *own]), options.runs)
    append_row(rows, {"algorithm": algorithm, "rate": rate, "seed": seed, **_measures(played)})


def _measures(run: Run) -> dict[str, Any]:
    """What the claims are about: success, success of one answer in eight, entropy, and how far iterations go."""
    found: dict[str, Any] = {"iterations": len(run.metrics)}
    for one in run.evaluations:
        found |= {one.stage: one.result.success.value, f"{one.stage}_pass_8": one.result.pass_at_k[8]}
    entropy = run.series("entropy")[1]
    found |= {"entropy_first": _mean_of(entropy[:ENDS]), "entropy_last": _mean_of(entropy[-ENDS:])}
    moved = run.series("log_ratio_rms")[1] or [0.0]  # no iteration had a signal
    found |= {"moved_most": max(moved), "moved": math.fsum(moved) / len(moved)}
    for name in ("clip_fraction", "zero_advantage_groups"):
        values = run.series(name)[1]
        if values:
            found[name] = math.fsum(values) / len(values)
    return found


def _mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def table(path: Path) -> list[str]:
    """By row and rate: means over seeds with half a 95 % interval, and the lead over GRPO with equal seeds."""
    found = list(read_rows(path))
    lines = []
    for algorithm, rate in dict.fromkeys((row["algorithm"], row["rate"]) for row in found):
        own = {row["seed"]: row for row in found if (row["algorithm"], row["rate"]) == (algorithm, rate)}
        base = {row["seed"]: row for row in found if (row["algorithm"], row["rate"]) == (ROWS[0], rate)}
        shared = sorted(own.keys() & base.keys()) if algorithm != ROWS[0] else []
        iterations = math.fsum(row["iterations"] for row in own.values()) / len(own)
        cells = [algorithm, rate, str(len(own)), f"{iterations:.0f}"]
        for key in ("after", "after_pass_8"):
            cells.append(_mean([100 * row[key] for row in own.values()]))
            cells.append(_mean([100 * (own[seed][key] - base[seed][key]) for seed in shared], "+") if shared else "")
        ends = [math.fsum(row[key] for row in own.values()) / len(own) for key in ("entropy_first", "entropy_last")]
        cells.append(" to ".join(f"{value:.2f}" for value in ends))
        cells.append(f"{math.fsum(row['moved'] for row in own.values()) / len(own):.2f}")
        clipped = [row["clip_fraction"] for row in own.values() if "clip_fraction" in row]
        cells.append(f"{100 * math.fsum(clipped) / len(clipped):.1f}" if clipped else "")
        cells.append(f"{100 * math.fsum(row['zero_advantage_groups'] for row in own.values()) / len(own):.0f}")
        lines.append(cells)
    header = [
        "row",
        "rate",
        "seeds",
        "iterations",
        "success %",
        "lead",
        "pass@8 %",
        "lead",
        "entropy",
        "log ratio",
        "clipped %",
    ]
    return Table([*header, "zero groups %"], lines).markdown()


def _mean(values: Sequence[float], sign: str = "") -> str:
    found = mean_over_seeds(values)
    return f"{found.value:{sign}.1f} ± {(found.high - found.low) / 2:.1f}"


STUDY = Study("ratios", __doc__, run, table)
STUDY.options.add_argument("--rates", nargs="+", default=["3e-4"])
STUDY.options.add_argument("--only", nargs="+", choices=ROWS, default=ROWS)


if __name__ == "__main__":
    raise SystemExit(STUDY.main())
