"""Is an environment learned through tool calls as well as through lines of text? The storeroom, three ways, at equal
turns.

    python -m benchmarks.studies.calls run          SFT of each model, then three runs of each
    python -m benchmarks.studies.calls table        success on unseen tasks, and what was called

``lines`` acts by a line of text a turn, ``act`` by the same line as ``act(command)``, ``tools`` by the environment's
own four tools, several at once where its expert does so. All runs have the settings of ``configs/tools-small.yaml`` but
for that, and end with the iteration that reaches ``--turns``. Rows go to ``lab/studies/calls.jsonl``; what stands there
is not run again, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished
from gagpo.base.tables import Table
from gagpo.data.episodes import read_episodes
from gagpo.eval.runs import Run
from gagpo.eval.statistics import mean_over_seeds
from gagpo.settings import load
from gagpo.sft.run import sft

PLAYERS = {
    "lines": ["environment.kwargs.form=text", "context.prompt=plain", "sft.model.marks=[]"],
    "act": ["environment.kwargs.form=text"],
    "tools": [],
}


def run(options: argparse.Namespace, rows: Path) -> None:
    """Player by player, SFT where its model is missing, and a run of each seed."""
    for player in options.players:
        model = options.models / f"calls-{player}"
        changes = [*PLAYERS[player], f"model={model}", *options.overrides]
        if not model.exists():
            sft(load("tools-small", changes), say=print)
        for seed in options.seeds:
            if not has_row(rows, player=player, seed=seed):
                length = [
                    f"training.max_turns={options.turns}",
                    "training.iterations=1000",
                    "training.save_episodes_every=1",
                ]
                own = [f"seed={seed}", f"name=calls-{player}-s{seed}"]
                one = finished(load("tools-small", [*changes, *length, *own]), options.runs)
                append_row(rows, _row(one, options.runs / f"calls-{player}-s{seed}", player, seed))


def _row(run: Run, folder: Path, player: str, seed: int) -> dict[str, Any]:
    results = {one.stage: one.result for one in run.evaluations if one.stage in ("before", "after")}
    last = sorted((folder / "episodes").glob("train-*.jsonl"))[-1]
    turns = [turn for episode in read_episodes(last) for turn in episode["turns"]]
    return {
        "player": player,
        "seed": seed,
        "turns": run.metrics[-1]["turns_total"],
        "iterations": len(run.metrics),
        "episodes": results["after"].episodes,
        "before": results["before"].success.value,
        "after": results["after"].success.value,
        "invalid_first": run.metrics[0]["invalid_rate"],
        "invalid_last": run.metrics[-1]["invalid_rate"],
        "several_calls": sum(len(turn.get("calls", [])) > 1 for turn in turns) / len(turns),
    }


def table(path: Path) -> list[str]:
    """Of each player: success before and after, its lead over ``lines`` in points, invalid turns and calls at once."""
    found = list(read_rows(path))
    after = {player: {row["seed"]: row["after"] for row in found if row["player"] == player} for player in PLAYERS}
    lines = []
    for player in PLAYERS:
        own = [row for row in found if row["player"] == player]
        if not own:
            continue
        shared = sorted(after[player].keys() & after["lines"].keys())
        lead = mean_over_seeds([100 * (after[player][seed] - after["lines"][seed]) for seed in shared])
        shown = "" if player == "lines" else f"{lead.value:+.1f} [{lead.low:+.1f}, {lead.high:+.1f}]"
        columns = [" ".join(f"{100 * row[name]:.0f}" for row in own) for name in ("before", "after")]
        means = [math.fsum(row[name] for row in own) / len(own) for name in ("turns", "invalid_last", "several_calls")]
        lines.append([player, *columns, shown, f"{means[0]:,.0f}", *(f"{100 * mean:.1f}" for mean in means[1:])])
    head = ["player", "before %", "after %", "lead over lines", "turns", "invalid turns %", "turns of several calls %"]
    return Table(head, lines).markdown()


STUDY = Study("calls", __doc__, run, table)
STUDY.options.add_argument("--players", nargs="+", choices=list(PLAYERS), default=list(PLAYERS))
STUDY.options.add_argument("--turns", type=int, default=20_000)
STUDY.options.add_argument("--models", type=Path, default=Path("data/models"))

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
