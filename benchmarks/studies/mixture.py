"""One model in three environments at once against a specialist of each, at equal turns in every environment.

    gagpo sft configs/mixture.yaml           the model that all of them begin with
    python -m benchmarks.studies.mixture run        seed by seed: the run of all environments, then a run of each
    environment alone python -m benchmarks.studies.mixture table      success on unseen tasks, and the differences in
    points

A specialist has the mixture's settings for its environment, as many groups of it an iteration, and ends with the
iteration that reaches the turns that the mixture played there. Rows go to ``lab/studies/mixture.jsonl``; what stands
there is not run again, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished
from gagpo.base.tables import Table
from gagpo.eval.runs import Run
from gagpo.eval.statistics import mean_over_seeds
from gagpo.runs.register import of_environment
from gagpo.settings import RunSettings, load

WORSE = -5.0
"""Points by which the mixture may stay behind a specialist."""


def run(options: argparse.Namespace, rows: Path) -> None:
    """Seed by seed, the mixture and then its specialists."""
    for seed in options.seeds:
        settings = load(options.config, [*options.overrides, f"seed={seed}", f"name=mixture-s{seed}"])
        mixed = finished(settings, options.runs)
        for env in settings.all_environments:
            turns = math.fsum(mixed.series(of_environment("turns", env.name))[1])
            if not has_row(rows, seed=seed, player="mixture", environment=env.name):
                for panel in env.panels:
                    append_row(rows, _row(mixed, seed, "mixture", env.name, panel, turns))
        for env in settings.all_environments:
            if has_row(rows, seed=seed, player="specialist", environment=env.name):
                continue
            turns = math.fsum(mixed.series(of_environment("turns", env.name))[1])
            specialist = finished(specialist_of(settings, env.name, turns), options.runs)
            for split in env.evaluation.splits:
                append_row(
                    rows, _row(specialist, seed, "specialist", env.name, split, specialist.metrics[-1]["turns_total"])
                )


def specialist_of(settings: RunSettings, name: str, turns: float) -> RunSettings:
    """The settings of a run of one environment of ``settings``, which ends after so many turns."""
    env = settings.environment_named(name)
    alone = settings.alone(env)
    share = env.weight / math.fsum(one.weight for one in settings.all_environments)
    training = {"iterations": 10 * settings.training.iterations, "max_turns": max(1, int(turns))}
    changes: dict[str, Any] = {
        "name": f"{settings.name}-{name}",
        "sft": None,
        "rollout": alone.rollout.model_copy(update={"tasks": max(1, round(share * settings.rollout.tasks))}),
        "training": settings.training.model_copy(update=training),
        "evaluation": alone.evaluation.model_copy(update={"every": 0}),
    }
    return alone.model_copy(update=changes)


def _row(run: Run, seed: int, player: str, env: str, panel: str, turns: float) -> dict[str, Any]:
    ends = {one.stage: one.result for one in run.evaluations if one.split == panel}
    row = {"seed": seed, "player": player, "environment": env, "turns": turns, "iterations": len(run.metrics)}
    for stage, result in ends.items():
        if stage in ("before", "after"):
            row[stage] = result.success.value
    after = ends["after"].panel
    return {**row, "tasks": after.tasks, "tries": after.tries, "split": after.split, "split_hash": after.split_hash}


def table(path: Path) -> list[str]:
    """For each environment: success before and after of both, and the mixture's lead in points over shared seeds."""
    found = list(read_rows(path))
    rows = []
    for env in dict.fromkeys(row["environment"] for row in found):
        after = {
            player: {row["seed"]: row["after"] for row in found if (row["environment"], row["player"]) == (env, player)}
            for player in ("mixture", "specialist")
        }
        shared = sorted(after["mixture"].keys() & after["specialist"].keys())
        if not shared:
            continue
        lead = mean_over_seeds([100 * (after["mixture"][seed] - after["specialist"][seed]) for seed in shared])
        before = [row["before"] for row in found if row["environment"] == env and "before" in row]
        means = [100 * math.fsum(values) / len(values) for values in (before, *(after[one].values() for one in after))]
        verdict = "yes" if lead.value >= WORSE else "no"
        shown = f"{lead.value:+.1f} [{lead.low:+.1f}, {lead.high:+.1f}]"
        rows.append([env, str(len(shared)), *(f"{mean:.1f}" for mean in means), shown, verdict])
    header = ["environment", "seeds", "before %", "mixture %", "specialist %", "lead", f"no worse than {WORSE:g}"]
    return Table(header, rows).lines(110)


STUDY = Study("mixture", __doc__, run, table)
STUDY.options.add_argument("--config", default="mixture", help="settings of a run of several environments")

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
