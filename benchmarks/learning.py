"""Learning studies: several algorithms from one warm start, several seeds each, two runs at a time, resumable.

    python benchmarks/learning.py credits             # turn-level credit in rooms, from the starter
    python benchmarks/learning.py credits-shop        # the same in the shop
    python benchmarks/learning.py algorithms          # the other presets
    python benchmarks/learning.py taught --rates 3e-4 1e-3   # newer rows and cells
    python benchmarks/learning.py ablations           # GAGPO's options
    python benchmarks/learning.py credits --table     # only the table and plot of what is there
    python benchmarks/learning.py sql --split test --table   # of another panel that its runs measured

Run it again after an interruption and it goes on where it was. Each run is an ordinary ``gagpo train`` in a process of
one thread. The raw numbers go to ``docs/results/STUDY.jsonl`` (one line per run), the plot beside it, the table to
standard output; with ``--add`` the rows that lie there and were not run again stay, whatever settings and code they
came of. Runs of a study end after equally many environment turns. Settings were chosen on ``chosen_on``; what is
reported is another split. With ``--rates`` every variant is first run once at each of them, on ``chosen_on`` and with
a seed of its own, and then all seeds at the rate with the highest success there; these first runs lie in
``STUDY-rates``. All runs start from one model and are measured on one panel with the panel's own seeds, so only the
first measures it before training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from gagpo.algorithms import PRESETS
from gagpo.eval.curves import plot_curves, plot_each
from gagpo.eval.runs import Run, load_run
from gagpo.eval.study import RunRow, curve_of, read_rows, row_of, write_rows
from gagpo.eval.study import Study as Table

MOST_IN_ONE = 6  # methods in one picture


@dataclass
class Study:
    """What is compared: ``variants`` names lists of overrides of ``config``; ``split`` is what is reported."""

    config: str
    variants: dict[str, list[str]]
    split: str = "valid_unseen"
    chosen_on: str = "valid_seen"
    common: list[str] = field(default_factory=list)


def preset(name: str, *more: str) -> list[str]:
    """Overrides that train with a preset, without the reference model's KL."""
    return [f"algorithm={{preset: {name}, kl: {{coefficient: 0.0}}}}", *more]


def cells(**changes: object) -> list[str]:
    """Overrides that train with cells of a row, GAGPO's unless named, without the reference model's KL."""
    return [f"algorithm={json.dumps({'preset': 'gagpo', 'kl': {'coefficient': 0.0}, **changes})}"]


# Small rooms, from the model that comes with the package; a run takes a minute on one core.
FIRST = "configs/alfworld-first.yaml"
SHORT = ["training.turns=6000", "training.iterations=20", "evaluation.tries=2", "evaluation.every=0"]
FAST = [*SHORT, "optimizer.learning_rate=1e-3"]
SHOP = "configs/webshop-first.yaml"

TURN_LEVEL = {
    "gagpo": preset("gagpo"),
    "gagpo, key observation": preset("gagpo", "algorithm.credit.key=observation"),
    **{name: preset(name) for name in ("grpo", "gigpo", "hgpo", "graphgpo", "milegpo")},
    **{name: preset(name) for name in ("graph_value", "graph_sum", "empirical_bayes")},
}
NEWER = ("rejection_sampling", "g2po", "empg", "optimal_token_baseline", "dppo", "sampo", "max_rl")
TREES = ("tree_grpo", "arpo", "at2po")
OTHERS = [name for name in PRESETS if name not in (*TURN_LEVEL, *NEWER, *TREES)]

STUDIES = {
    "credits": Study(FIRST, TURN_LEVEL, common=FAST),
    "credits-full": Study(  # the same weak starter in rooms of 20 to 48 receptacles
        FIRST,
        TURN_LEVEL,
        common=[
            "environment.kwargs={size: full, max_turns: 30, counts: {train: 600, valid_seen: 72, valid_unseen: 138}}",
            *("training.turns=20000", "training.iterations=30", "optimizer.learning_rate=1e-3"),
            *("evaluation.every=0", "optimizer.schedule=constant"),
        ],
    ),
    "credits-shop": Study(
        SHOP,
        TURN_LEVEL,
        split="test",
        chosen_on="validation",
        common=["training.turns=2500", "training.iterations=30", "evaluation.every=0"],
    ),
    "credits-household": Study(  # where one habit is not enough: rooms as ALFRED has them, fifty turns
        "configs/alfworld-agent.yaml",
        TURN_LEVEL,
        common=["training.turns=30000", "training.average=null", "optimizer.schedule=constant"],
    ),
    "credits-catalogue": Study(  # where the first result is mostly wrong
        SHOP,
        TURN_LEVEL,
        split="test",
        chosen_on="validation",
        common=[
            "model=starter:webshop-agent",
            "environment.kwargs={products: 20000, max_turns: 15}",
            *("training.turns=5000", "training.iterations=30", "optimizer.schedule=constant", "evaluation.every=0"),
        ],
    ),
    "algorithms": Study(FIRST, {name: preset(name) for name in ("gagpo", *OTHERS)}, common=FAST),
    "taught": Study(  # every method after as many turns of the world; a teacher's forward passes are not turns
        FIRST,
        {
            "GAGPO": preset("gagpo"),
            "GRPO": preset("grpo"),
            **{name: preset(name) for name in NEWER},
            "GRPO, IcePop": cells(preset="grpo", correction={"name": "icepop", "low": 0.5, "high": 5.0}),
            "GRPO, KPop": cells(preset="grpo", correction={"name": "kpop"}),
            "GRPO, variance filter": cells(preset="grpo", controllers={"variance_filter": {"share": 0.9}}),
            "tree_grpo": preset("tree_grpo", "rollout.branch={episodes: 4, by: uniform}"),
            "arpo": preset("arpo", "rollout.branch={episodes: 4}"),
            "at2po": preset("at2po", "rollout.branch={episodes: 4, rounds: 2}"),
            "SPEAR": cells(
                preset="dr_grpo",
                gate={"high": 0.28},
                replay={},
                controllers={"variance_filter": {"share": 0.75}},
            ),
            "expert alone": cells(credit_weight=0.0, expert={}),
            "GAGPO and expert": cells(expert={"coefficient": 0.5, "schedule": "linear"}),
            "self-distillation": cells(
                preset="dr_grpo",
                aggregation="token_mean",
                credit_weight=0.0,
                distillation={"teacher": "self", "hint": "success"},
            ),
            "GAGPO and self-distillation": cells(
                distillation={"teacher": "self", "hint": "success", "form": "bounded", "coefficient": 0.1}
            ),
            "GAGPO, Muon": preset("gagpo", "optimizer.name=muon"),
        },
        common=SHORT,
    ),
    "ablations": Study(
        FIRST,
        {
            "GAGPO": preset("gagpo"),
            **{f"lambda {lam}": preset("gagpo", f"algorithm.credit.lam={lam}") for lam in (0, 0.5, 0.95, 1)},
            "key observation": preset("gagpo", "algorithm.credit.key=observation"),
            "key history": preset("gagpo", "algorithm.credit.key=history"),
            **{f"norm {norm}": preset("gagpo", f"algorithm.credit.norm={norm}") for norm in ("batch", "none")},
            "trajectory term": preset("gagpo", "algorithm.credit.trajectory_weight=1.0"),
            "token ratio": preset("gagpo", "algorithm.ratio=token", "algorithm.aggregation=token_mean"),
            **{
                f"clip {radius}": preset("gagpo", f"algorithm.gate={{name: clip, low: {radius}, high: {radius}}}")
                for radius in (0.02, 0.05)
            },
        },
        common=FAST,
    ),
    "sql": Study("configs/sql-small.yaml", {"GAGPO": preset("gagpo")}, split="unseen"),
    "maths": Study(
        "configs/maths-first.yaml",
        {"gagpo": preset("gagpo"), "grpo": preset("grpo")},
        split="test",
        chosen_on="validation",
        common=["evaluation.splits=[test]", "evaluation.every=0"],
    ),
}


# From starters that play well already: 60 iterations at a constant rate, the weights averaged beside them -------------

PLAIN = "optimizer.by_groups=false"
AVERAGED = "training.average={decay: 0.95}"
LASTING = ["training.iterations=60", "optimizer.schedule=constant", AVERAGED]
SINGLE = "{levels: [1, 2, 3, 4], size: 60000, test_size: 480, attempts: 1, tools: false}"
ALONE = ["model=starter:maths-single", f"environment.kwargs={SINGLE}", *LASTING]


def rates(name: str) -> dict[str, list[str]]:
    """A method at rates that follow groups or signal."""
    groups = {f"{rate} by groups": preset(name, f"optimizer.learning_rate={rate}") for rate in ("3e-4", "1e-3")}
    signal = {
        f"{rate} by signal": preset(name, f"optimizer.learning_rate={rate}", "training.signal_rate={}")
        for rate in ("1e-3", "3e-3")
    }
    return {**groups, **signal}


STUDIES |= {
    # Which steps keep what a model can do; chosen on the tasks of validation.
    "steps": Study(
        "configs/maths-single-small.yaml",
        {
            "3e-4": preset("grpo", PLAIN),
            "3e-4 by groups": preset("grpo"),
            "3e-4, second moment .99": preset("grpo", PLAIN, "optimizer.betas=[0.9, 0.99]"),
            "1e-4": preset("grpo", PLAIN, "optimizer.learning_rate=1e-4"),
            "3e-5": preset("grpo", PLAIN, "optimizer.learning_rate=3e-5"),
            "3e-4, KL .03": ["algorithm={preset: grpo, kl: {coefficient: 0.03}}", PLAIN],
            "3e-4, 64 problems": preset("grpo", PLAIN, "rollout.tasks=64", "training.iterations=15"),
        },
        split="validation",
        common=[*ALONE, "evaluation.splits=[validation]", "evaluation.tasks=300"],
    ),
    # One rate for a player that learns and for one that is good already, followed by groups and by signal.
    "rates-weak": Study(FIRST, rates("gagpo"), common=["evaluation.tries=2", "evaluation.every=0"]),
    "rates-strong": Study(
        "configs/maths-single-small.yaml",
        rates("grpo"),
        split="validation",
        common=[*ALONE, "rollout.max_tokens=128", "evaluation.splits=[validation]", "evaluation.tasks=300"],
    ),
    # What is left after 60 iterations at the settings of the first runs; 500 tasks that nothing was chosen on.
    "lasting-maths": Study(
        "configs/maths-single-small.yaml",
        {"GRPO": preset("grpo")},
        split="test",
        common=[*ALONE, "rollout.max_tokens=128", "evaluation.every=0"],
    ),
    "lasting-calculator": Study(
        "configs/maths-first.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        common=[
            "model=starter:maths-agent",
            *LASTING,
            "environment.kwargs.test_size=480",
            *("evaluation.splits=[test]", "evaluation.every=0"),
        ],
    ),
    "lasting-alfred": Study(
        "configs/alfworld-agent.yaml",
        {"GAGPO": preset("gagpo")},
        common=[
            "model=starter:alfworld-alfred",
            *LASTING,
            "environment.kwargs.seed=29",
            "environment.kwargs.counts={train: 2400, valid_seen: 138, valid_unseen: 500}",
        ],
    ),
    "lasting-shop": Study(
        "configs/webshop-first.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        common=["model=starter:webshop-agent", *LASTING, "evaluation.tasks=500"],
    ),
    "lasting-household": Study(
        "configs/starters/alfworld-agent.yaml",
        {"GAGPO": preset("gagpo")},
        common=[
            "model=starter:alfworld-agent",
            *LASTING,
            "environment.kwargs.seed=29",
            "environment.kwargs.counts={train: 2400, valid_seen: 138, valid_unseen: 500}",
        ],
    ),
}

# A strong player in rooms as released games have them, which it was not made for, by reinforcement alone.
STUDIES |= {
    "lift-household": Study("configs/alfworld-agent.yaml", {"GAGPO": preset("gagpo")}),
    "lift-catalogue": Study(  # 20,000 products, from a short warm start on an expert that goes back
        "configs/starters/webshop-browser.yaml",
        {"GAGPO": preset("gagpo")},
        split="test",
        chosen_on="validation",
    ),
    "lift-early": Study(  # from the second stage of its warm start
        "configs/starters/alfworld-early.yaml", {"GAGPO": preset("gagpo")}, split="full.valid_unseen"
    ),
}


def folder_of(runs: Path, study: str, label: str, seed: int) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in label).strip("-").lower()
    return runs / study / f"{name}-{seed}"


SWEEP_SEED = 100  # not used by what is reported


def sweep(study: Study, rates: list[str]) -> Study:
    """Every variant at every rate, measured where settings are chosen."""
    variants = {
        f"{label} {rate}": [*overrides, f"optimizer.learning_rate={rate}"]
        for label, overrides in study.variants.items()
        for rate in rates
    }
    common = [*study.common, f"evaluation.splits=[{study.chosen_on}]"]
    return replace(study, variants=variants, split=study.chosen_on, common=common)


def at_best_rates(study: Study, rows: dict[str, RunRow], rates: list[str]) -> Study:
    """Every variant at the rate that won most in its sweep; the smallest of equals."""
    variants = {}
    for label, overrides in study.variants.items():
        measured = {rate: rows[f"{label} {rate}"].after for rate in rates if f"{label} {rate}" in rows}
        if not measured:
            continue
        best = max(measured, key=lambda rate: (measured[rate], -float(rate)))
        print(f"{label}: {', '.join(f'{r} {100 * x:.1f} %' for r, x in measured.items())}; takes {best}", flush=True)
        variants[label] = [*overrides, f"optimizer.learning_rate={best}"]
    return replace(study, variants=variants)


def play(
    study: Study, study_name: str, label: str, seed: int, runs: Path, more: list[str], before: bool
) -> tuple[Path, int]:
    """Start or continue one run; its folder and exit status. before: whether it measures the model it starts from."""
    folder = folder_of(runs, study_name, label, seed)
    if (folder / "evals" / f"after-{study.split}.json").exists():
        return folder, 0
    command = [sys.executable, "-m", "gagpo", "train"]
    if (folder / "config.yaml").exists():
        command += ["--resume", str(folder)]
    else:
        own = [f"name={folder.name}", f"seed={seed}", "threads=1", f"evaluation.before={str(before).lower()}"]
        overrides = [*study.common, *study.variants[label], *own, *more]
        command += [study.config, *overrides, "--runs", str(folder.parent)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        status = subprocess.run([*command, "-q"], stdout=log, stderr=log, env=environment, check=False).returncode
    return folder, status


def play_all(study: Study, name: str, todo: list[tuple[str, int]], arguments: argparse.Namespace) -> None:
    """Start or continue the runs of ``todo``, labels and seeds, some at a time; a run that is finished stays."""
    begun = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as executor:
        waiting = {
            key: executor.submit(play, study, name, *key, arguments.runs, arguments.overrides, key == todo[0])
            for key in todo
        }
        for (label, seed), future in waiting.items():
            folder, status = future.result()
            outcome = "done" if status == 0 else f"failed with status {status}, see {folder}.log"
            print(f"{time.monotonic() - begun:6.0f} s  {label}, seed {seed}: {outcome}", flush=True)


def gather(split: str, label: str, seed: int, folder: Path) -> list[RunRow]:
    """One run's numbers, none when it is not finished; of a run that averages its weights those of the average too."""
    measured = sorted(folder.parent.glob(f"*/evals/before-{split}.json"))
    before = folder / "evals" / f"before-{split}.json"
    if not measured or not (folder / "evals" / f"after-{split}.json").exists():
        return []
    if not before.exists():
        shutil.copyfile(measured[0], before)
    run = load_run(folder)
    named = {"after": label, "average": f"{label}, averaged"}
    found = [row_of(name, run, seed, split, stage) for stage, name in named.items()]
    return [row.model_copy(update={"seed": seed}) for row in found if row]


def with_earlier(rows: list[RunRow], earlier: list[RunRow], labels: list[str]) -> list[RunRow]:
    """``rows`` and those of ``earlier`` that were not run again, in the order of seeds and ``labels``."""
    again = {(row.label, row.seed) for row in rows}
    order = {name: i for i, name in enumerate(name for label in labels for name in (label, f"{label}, averaged"))}
    # a method that the study has no longer is gone
    kept = [row for row in earlier if (row.label, row.seed) not in again and row.label in order]
    return sorted([*kept, *rows], key=lambda row: (row.seed, order[row.label]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("overrides", nargs="*", help="section.key=value for every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="these variants")
    parser.add_argument("--without", nargs="+", default=[], help="all but these variants")
    parser.add_argument("--split", help="another one that the runs measure; its rows go to STUDY-SPLIT.jsonl")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--rates", nargs="+", help="learning rates, of which every variant takes its best")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--add", action="store_true", help="keep the rows of runs that are not among these")
    arguments = parser.parse_intermixed_args()
    study = STUDIES[arguments.study]
    wanted = [label for label in arguments.only or study.variants if label not in arguments.without]
    study = replace(study, variants={label: study.variants[label] for label in wanted})
    results = arguments.study
    if arguments.split and arguments.split != study.split:
        study, results = replace(study, split=arguments.split), f"{results}-{arguments.split}"
    if arguments.rates:
        swept, place = sweep(study, arguments.rates), f"{arguments.study}-rates"
        first = [(label, SWEEP_SEED) for label in swept.variants]
        if not arguments.table:
            play_all(swept, place, first, arguments)
        rows = [row for key in first for row in gather(study.chosen_on, *key, folder_of(arguments.runs, place, *key))]
        study = at_best_rates(study, {row.label: row for row in rows}, arguments.rates)
    labels = list(study.variants)
    todo = [(label, seed) for seed in arguments.seeds for label in labels]
    if not arguments.table:
        play_all(study, arguments.study, todo, arguments)
    rows = [row for key in todo for row in gather(study.split, *key, folder_of(arguments.runs, arguments.study, *key))]
    played = {(row.label, row.seed) for row in rows}
    raw = arguments.out / f"{results}.jsonl"
    known = list(STUDIES[arguments.study].variants)
    if arguments.add and raw.exists():
        rows = with_earlier(rows, read_rows(raw), known)
    if not rows:
        sys.exit("no run is finished yet")
    table = Table.of(rows)  # refuses rows of other tasks, before what lies there is replaced
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_rows(raw, rows, study=results)
    trained: dict[str, list[Run]] = {}
    for row in rows:
        if row.label in known:  # an average has no curve of its own
            folder = folder_of(arguments.runs, arguments.study, row.label, row.seed)
            run = load_run(folder) if (row.label, row.seed) in played else curve_of(row)
            trained.setdefault(row.label, []).append(run)
    draw = plot_curves if len(trained) <= MOST_IN_ONE else plot_each
    plot = draw(trained, arguments.out / f"{results}.png", x="turns", smooth=3)
    print("\n".join([*table.notes(), "", *table.markdown()]))
    print(f"raw numbers: {raw}\nplot: {plot}")


if __name__ == "__main__":
    main()
