"""One model in three worlds at once against a specialist of each, at equal turns in every world.

    gagpo sft configs/mixture.yaml           the model that all of them begin with
    python -m benchmarks.studies.mixture run        seed by seed: the run of all worlds, then a run of each world alone
    python -m benchmarks.studies.mixture table      success on unseen tasks, and the differences in points

A specialist has the mixture's settings for its world, as many groups of it an iteration, and ends with the iteration
that reaches the turns that the mixture played there. Rows go to ``lab/studies/mixture.jsonl``; what stands there is
not run again, and a run that was interrupted goes on.
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
from gagpo.runs.register import of_world
from gagpo.settings import RunSettings, load

WORSE = -5.0
"""Points by which the mixture may stay behind a specialist."""


def run(options: argparse.Namespace, rows: Path) -> None:
    """Seed by seed, the mixture and then its specialists."""
    for seed in options.seeds:
        settings = load(options.config, [*options.overrides, f"seed={seed}", f"name=mixture-s{seed}"])
        mixed = finished(settings, options.runs)
        for world in settings.worlds:
            turns = math.fsum(mixed.series(of_world("turns", world.name))[1])
            if not has_row(rows, seed=seed, player="mixture", world=world.name):
                for panel in world.panels:
                    append_row(rows, _row(mixed, seed, "mixture", world.name, panel, turns))
        for world in settings.worlds:
            if has_row(rows, seed=seed, player="specialist", world=world.name):
                continue
            turns = math.fsum(mixed.series(of_world("turns", world.name))[1])
            specialist = finished(specialist_of(settings, world.name, turns), options.runs)
            for split in world.evaluation.splits:
                append_row(
                    rows, _row(specialist, seed, "specialist", world.name, split, specialist.metrics[-1]["turns_total"])
                )


def specialist_of(settings: RunSettings, name: str, turns: float) -> RunSettings:
    """The settings of a run of one world of ``settings``, which ends after so many turns."""
    world = settings.world_named(name)
    alone = settings.alone(world)
    share = world.weight / math.fsum(one.weight for one in settings.worlds)
    training = {"iterations": 10 * settings.training.iterations, "turns": max(1, int(turns))}
    changes: dict[str, Any] = {
        "name": f"{settings.name}-{name}",
        "sft": None,
        "rollout": alone.rollout.model_copy(update={"tasks": max(1, round(share * settings.rollout.tasks))}),
        "training": settings.training.model_copy(update=training),
        "evaluation": alone.evaluation.model_copy(update={"every": 0}),
    }
    return alone.model_copy(update=changes)


def _row(run: Run, seed: int, player: str, world: str, panel: str, turns: float) -> dict[str, Any]:
    ends = {one.stage: one.result for one in run.evaluations if one.split == panel}
    row = {"seed": seed, "player": player, "world": world, "turns": turns, "iterations": len(run.metrics)}
    for stage, result in ends.items():
        if stage in ("before", "after"):
            row[stage] = result.success.value
    after = ends["after"].panel
    return {**row, "tasks": after.tasks, "tries": after.tries, "split": after.split, "split_hash": after.split_hash}


def table(path: Path) -> list[str]:
    """Of each world: success before and after, of both players, and the mixture's lead in points over shared seeds."""
    found = list(read_rows(path))
    rows = []
    for world in dict.fromkeys(row["world"] for row in found):
        after = {
            player: {row["seed"]: row["after"] for row in found if (row["world"], row["player"]) == (world, player)}
            for player in ("mixture", "specialist")
        }
        shared = sorted(after["mixture"].keys() & after["specialist"].keys())
        if not shared:
            continue
        lead = mean_over_seeds([100 * (after["mixture"][seed] - after["specialist"][seed]) for seed in shared])
        before = [row["before"] for row in found if row["world"] == world and "before" in row]
        means = [100 * math.fsum(values) / len(values) for values in (before, *(after[one].values() for one in after))]
        verdict = "yes" if lead.value >= WORSE else "no"
        shown = f"{lead.value:+.1f} [{lead.low:+.1f}, {lead.high:+.1f}]"
        rows.append([world, str(len(shared)), *(f"{mean:.1f}" for mean in means), shown, verdict])
    header = ["world", "seeds", "before %", "mixture %", "specialist %", "lead", f"no worse than {WORSE:g}"]
    return Table(header, rows).lines(110)


STUDY = Study("mixture", __doc__, run, table)
STUDY.options.add_argument("--config", default="mixture", help="settings of a run of several worlds")

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
