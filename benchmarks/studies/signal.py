"""How much of a gradient is signal: by the player's success, and by how its episodes are shared among tasks.

    python -m benchmarks.studies.signal run      every player with every shape of a batch, seed by seed
    python -m benchmarks.studies.signal table    means over seeds

The policy stays as it is: the rate is next to nothing, so that the iterations of a run are repeated measurements. Of
every iteration the gradients of four mini-batches over other task groups are compared (``training.measure_signal``).
Rows go to ``lab/studies/signal.jsonl``; what stands there is not run again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished
from gagpo.base.tables import Table
from gagpo.eval.statistics import mean_over_seeds
from gagpo.settings import load


class Player(NamedTuple):
    """A model in a world that it meets with some success. overrides: of the config."""

    config: str
    overrides: tuple[str, ...] = ()


SINGLE = "environment.kwargs={levels: [1, 2, 3, 4], size: 60000, test_size: 480, attempts: 1, tools: false}"
PLAYERS = {
    "small rooms, weak": Player("alfworld-first"),
    "single-turn maths": Player("maths-single-small", ("model=starter:maths-single", SINGLE)),
    "rooms as in ALFRED": Player("alfworld-agent"),
    "shop of 1,000, strong": Player("webshop-first", ("model=starter:webshop-agent",)),
    "small rooms, strong": Player("alfworld-first", ("model=starter:alfworld-agent", "rollout.max_tokens=12")),
}

SHAPES = ((32, 4), (16, 8), (8, 16))
"""Tasks and tries of an iteration: equally many episodes."""

ITERATIONS = 4
MEASURES = ("success_rate", "zero_groups", "gradient_signal", "critical_groups", "grad_norm")


def run(options: argparse.Namespace, rows: Path) -> None:
    """Seed by seed, every player with every shape of a batch."""
    for seed in options.seeds:
        for name, player in PLAYERS.items():
            for tasks, samples in SHAPES:
                if not has_row(rows, player=name, tasks=tasks, samples=samples, seed=seed):
                    append_row(rows, row_of(options, name, player, tasks, samples, seed))


def row_of(
    options: argparse.Namespace, name: str, player: Player, tasks: int, samples: int, seed: int
) -> dict[str, Any]:
    """The row of one run: means over iterations; of the signal, which may be below 0 by chance, the same."""
    short = "".join(c if c.isalnum() else "-" for c in name)
    own = [f"name={short}-{tasks}x{samples}-s{seed}", f"seed={seed}", f"rollout.tasks={tasks}"]
    still = [
        *(f"rollout.samples={samples}", f"training.iterations={ITERATIONS}", "training.measure_signal=true"),
        *("training.average=null", "optimizer.learning_rate=1e-12", "optimizer.by_groups=false"),
        *("evaluation.splits=[]", "evaluation.every=0"),
    ]
    run = finished(load(player.config, [*player.overrides, *still, *options.overrides, *own]), options.runs)
    row = {"player": name, "tasks": tasks, "samples": samples, "seed": seed, "iterations": len(run.metrics)}
    for measure in MEASURES:
        values = [float(one[measure]) for one in run.metrics if measure in one]
        row |= {measure: math.fsum(values) / len(values)} if values else {}
    return row


def table(path: Path) -> list[str]:
    """By player and shape: success, groups that teach nothing, signal, and groups for as much signal as noise."""
    found = list(read_rows(path))
    rows = []
    for player, tasks, samples in dict.fromkeys((row["player"], row["tasks"], row["samples"]) for row in found):
        own = [row for row in found if (row["player"], row["tasks"], row["samples"]) == (player, tasks, samples)]
        signal = mean_over_seeds([row["gradient_signal"] for row in own if "gradient_signal" in row])
        means = {key: math.fsum(row[key] for row in own) / len(own) for key in ("success_rate", "zero_groups")}
        needed = tasks / 4 * (1 - signal.value) / signal.value if signal.value > 0 else math.inf
        shown = f"{signal.value:.2f} [{signal.low:.2f}, {signal.high:.2f}]"
        shares = [f"{100 * means[key]:.0f}" for key in ("success_rate", "zero_groups")]
        rows.append([player, f"{tasks} x {samples}", str(len(own)), *shares, shown, f"{needed:.0f}"])
    header = [
        "player",
        "tasks x tries",
        "seeds",
        "success %",
        "zero groups %",
        "signal of a mini-batch",
        "critical groups",
    ]
    return Table(header, rows).lines(120)


STUDY = Study("signal", __doc__, run, table)

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
