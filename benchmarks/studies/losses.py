"""Why a model that does well gets worse under RL: what plain steps cost it, and which change of them keeps it.

    python -m benchmarks.studies.losses run      every change of the plain run, seed by seed
    python -m benchmarks.studies.losses table    means over seeds

The single-turn model of ``configs/math-single-small.yaml``, made by its SFT if it is missing, is trained with Adam
alone: steps are not limited, and a gradient's length does not count. Each other run changes one suspected cause. One
shuffles the advantages of a group, so that they contain no signal. One trains on three of six families of problems. All
sample equally many answers and take equally many steps. Success is measured on problems of all six families. Rows go to
``lab/studies/losses.jsonl``; a run that has a row is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from benchmarks.studies.rows import append_row, has_row, read_rows
from benchmarks.studies.study import Study, finished, made_by_sft
from gagpo import evaluate
from gagpo.base.tables import Table
from gagpo.credit.episode import Grpo
from gagpo.credit.registry import Level
from gagpo.credit.turns import Turns
from gagpo.envs.math.families import FAMILIES
from gagpo.eval.runs import Run
from gagpo.eval.statistics import mean_over_seeds
from gagpo.settings import load

TRAINED = ("arithmetic", "words", "equations")
"""The kinds that one run trains on alone; of every run they are measured apart from the others."""

PROBLEMS = {"levels": [1, 2, 3, 4], "size": 60000, "test_size": 480, "attempts": 1, "tools": False}
PLAIN = ("training.target_kl=null", "optimizer.scale_by_groups=false")
COMMON = (
    *("rollout.group_size=8", "rollout.max_tokens=128", "optimizer.lr_scheduler=constant"),
    *("evaluation.splits=[]", "evaluation.every=0"),
)
BATCH = ("rollout.tasks=16", "training.minibatches=4", "training.iterations=40")
ONE_STEP = ("rollout.tasks=4", "training.minibatches=1", "training.iterations=160")
SHUFFLED = {"name": f"{__name__ if __name__ != '__main__' else 'benchmarks.studies.losses'}:Shuffled"}


class Shuffled(Grpo):
    """GRPO's advantages, given to the tries of each group at random: as long a step, and no signal in it."""

    level: ClassVar[Level] = "episode"
    name: Literal["benchmarks.studies.losses:Shuffled"] = "benchmarks.studies.losses:Shuffled"  # type: ignore[assignment]

    def advantage(self, turns: Turns) -> np.ndarray:
        advantage_E = super().advantage(turns)[np.unique(turns.episode_N, return_index=True)[1]]
        order = np.random.default_rng(len(advantage_E) + int(turns.tokens_N.sum()))
        for group in np.unique(turns.group_E):
            mine = np.flatnonzero(turns.group_E == group)
            advantage_E[mine] = advantage_E[order.permutation(mine)]
        return np.asarray(advantage_E[turns.episode_N])


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    # what of the algorithm, of the problems and of the rest is otherwise than in the plain run
    "plain": ({}, {}, (*BATCH, *PLAIN)),
    "credit at random": ({"credit": SHUFFLED}, {}, (*BATCH, *PLAIN)),
    "one step a batch": ({}, {}, (*ONE_STEP, *PLAIN)),
    "entropy kept": ({"entropy": 0.01}, {}, (*BATCH, *PLAIN)),
    "three kinds of six": ({}, {"families": TRAINED}, (*BATCH, *PLAIN)),
    "the default steps": ({}, {}, BATCH),
}


def run(options: argparse.Namespace, rows: Path) -> None:
    """Every change, seed by seed, and once the model that all start from."""
    if not has_row(rows, change="before"):
        start = made_by_sft(load("math-single-small", options.overrides))
        append_row(rows, {"change": "before", "seed": 0, **measured(start, options)})
    for seed in options.seeds:
        for change in options.only:
            if not has_row(rows, change=change, seed=seed):
                played = trained(options, change, seed)
                for name in (change, f"{change}, averaged") if change == "the default steps" else (change,):
                    model = f"{played.folder}@ema" if name != change else str(played.folder)
                    append_row(rows, {"change": name, "seed": seed, **course(played), **measured(model, options)})


def trained(options: argparse.Namespace, change: str, seed: int) -> Run:
    """The run of one change."""
    algorithm, problems, rest = CHANGES[change]
    own = [f"name={change.replace(' ', '-')}-s{seed}", f"seed={seed}", "optimizer.learning_rate=3e-4"]
    own.append(f"algorithm={json.dumps({'preset': 'grpo', 'kl': {'coefficient': 0.0}, **algorithm})}")
    own.append(f"environment.kwargs={json.dumps({**PROBLEMS, **problems})}")
    return finished(load("math-single-small", [*COMMON, *rest, *own, *options.overrides]), options.runs)


def course(played: Run) -> dict[str, float]:
    """What the run itself logged, over all of its iterations: how sure it became, and how far its steps went."""
    entropy = played.series("entropy")[1]
    third = max(len(entropy) // 10, 1)
    found = {"entropy_first": math.fsum(entropy[:third]) / third, "entropy_last": math.fsum(entropy[-third:]) / third}
    for name in ("zero_advantage_groups", "log_ratio_rms"):
        values = played.series(name)[1]
        found[name] = math.fsum(values) / len(values)
    return found


def measured(model: str, options: argparse.Namespace) -> dict[str, float]:
    """Success on unseen problems of all families: of the trained ones and the others, sampled and greedy."""
    found = {}
    for name, temperature, tries in (("sampled", 0.4, 4), ("greedy", 0.0, 1)):
        result = evaluate(
            model,
            like="math-single-small",
            kwargs={**PROBLEMS, "families": "all"},
            split="validation",
            tasks=options.tasks,
            episodes_per_task=tries,
            temperature=temperature,
            max_tokens=128,
            quiet=True,
        )
        for part, kinds in (("trained", TRAINED), ("other", sorted(set(FAMILIES) - set(TRAINED)))):
            tasks = [task for task in result.tasks if task.task_type in kinds]
            found[f"{name}_{part}"] = math.fsum(task.successes / len(task.tries) for task in tasks) / len(tasks)
        found[name] = result.success.value
    return found


def table(path: Path) -> list[str]:
    """By change: means over seeds with half a 95 % interval, in points against the start."""
    found = list(read_rows(path))
    start = next(row for row in found if row["change"] == "before")
    measures = ("sampled", "sampled_trained", "sampled_other", "greedy")
    rows = [["before", "", *(f"{100 * start[name]:.1f}" for name in measures)]]
    for change in dict.fromkeys(row["change"] for row in found if row is not start):
        own = [row for row in found if row["change"] == change]
        cells = []
        for name in measures:
            fall = mean_over_seeds([100 * (row[name] - start[name]) for row in own])
            cells.append(
                f"{fall.value:+.1f} ± {(fall.high - fall.low) / 2:.1f}" if len(own) > 1 else f"{fall.value:+.1f}"
            )
        rows.append([change, str(len(own)), *cells])
    header = ["steps", "seeds", "success, points", "three kinds", "the others", "greedy"]
    return Table(header, rows).markdown()


STUDY = Study("losses", __doc__, run, table)
STUDY.options.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
STUDY.options.add_argument("--tasks", type=int, help="validation problems to measure on; by default all")


if __name__ == "__main__":
    raise SystemExit(STUDY.main())
