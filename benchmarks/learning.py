"""Learning studies: several algorithms from one model, several seeds each, two runs at a time, resumable.

    python -m benchmarks.learning credits             # turn-level credit in rooms, from the starter
    python -m benchmarks.learning credits-shop        # the same in the shop
    python -m benchmarks.learning algorithms          # the other presets
    python -m benchmarks.learning taught --rates 3e-4 1e-3   # newer rows and cells
    python -m benchmarks.learning ablations           # GAGPO's options; ablations-apmpo, -agpo, -sapo, -asymmetric
    python -m benchmarks.learning credits --table     # the table of the runs here, else of the rows in lab/results
    python -m benchmarks.learning sql --split test --table   # of another panel that its runs measured

Run it again after an interruption and it goes on where it was. Each run is an ordinary ``gagpo train`` in a process of
one thread. The raw numbers go to ``lab/results/STUDY.jsonl`` (one line per run), the plot beside it, the table to
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
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
from matplotlib.image import imread, imsave

from benchmarks.studies.compared import STUDIES
from benchmarks.studies.designs import Study
from gagpo.base import durable
from gagpo.base.interpreter import module_command
from gagpo.eval.curves import (
    COLOURS,
    GREY,
    INK,
    X_NAMES,
    band,
    empty_figure,
    literal,
    plain_axes,
    plot_curves,
    training_lines,
    write_figure,
)
from gagpo.eval.runs import Run, load_run
from gagpo.eval.study import RunRow, read_rows, row_of
from gagpo.eval.study import Study as Table

MOST_IN_ONE = 6  # methods in one picture
ACROSS = 5  # small pictures side by side
PAGE = np.array([13, 17, 23]) / 255  # the background of a dark page
HALF_ROUND = np.array([[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]])
"""Turns colours to the opposite hue, as ``hue-rotate(180deg)`` of CSS does."""


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


class RunProcesses:
    """The processes of runs. At SIGTERM or Ctrl-C each writes a checkpoint and ends, and no other starts.

    stopped_by: the number of the signal; 0 if none has come.
    """

    def __init__(self) -> None:
        self.stopped_by = 0
        self._under_way: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()  # only threads that wait for a run take it, never the one that handles signals

    def run(self, words: Sequence[str], log: Path) -> int:
        """The exit status of ``gagpo WORDS``. The system kills it when this process is gone."""
        command = module_command("gagpo.sweeps.child", str(os.getpid()), *words)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as file, self._lock:
            if self.stopped_by:
                return 128 + self.stopped_by
            # In a session of its own: a terminal's Ctrl-C would reach it beside the signal that is passed on.
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
            self._under_way = {*self._under_way, process}
            if self.stopped_by:  # the signal came while the process was being started
                process.terminate()
        status = process.wait()
        with self._lock:
            self._under_way = self._under_way - {process}
        return status

    @contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = number
        for process in self._under_way:
            process.terminate()


def play(
    study: Study, processes: RunProcesses, folder: Path, label: str, seed: int, more: list[str], before: bool
) -> int:
    """Start or continue one run; its exit status. before: whether it measures the model it starts from."""
    if (folder / "evals" / f"after-{study.split}.json").exists():
        return 0
    words = ["train", "-q"]
    if (folder / "config.yaml").exists():
        words += ["--resume", str(folder)]
    else:
        own = [f"name={folder.name}", f"seed={seed}", "threads=1", f"evaluation.before={str(before).lower()}"]
        overrides = [*study.common, *study.variants[label], *own, *more]
        words += [study.config, *overrides, "--runs", str(folder.parent)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    return processes.run(words, folder.with_name(f"{folder.name}.log"))


def play_all(study: Study, name: str, todo: list[tuple[str, int]], arguments: argparse.Namespace) -> None:
    """Start or continue the runs of ``todo``, labels and seeds, some at a time; a run that is finished stays.

    Raises:
        SystemExit: a signal has ended the runs that were under way.
    """
    begun = time.monotonic()
    processes = RunProcesses()
    folders = {key: folder_of(arguments.runs, name, *key) for key in todo}
    with processes.passing_signals_on(), ThreadPoolExecutor(arguments.jobs) as executor:
        waiting = {
            key: executor.submit(play, study, processes, folders[key], *key, arguments.overrides, key == todo[0])
            for key in todo
        }
        for (label, seed), future in waiting.items():
            status = future.result()
            if processes.stopped_by:
                continue
            outcome = "done" if status == 0 else f"failed with status {status}, see {folders[label, seed]}.log"
            print(f"{time.monotonic() - begun:6.0f} s  {label}, seed {seed}: {outcome}", flush=True)
    if processes.stopped_by:
        print("stopped; the same command goes on from the last checkpoints", file=sys.stderr)
        sys.exit(128 + processes.stopped_by)


def copy_start(evals: Path) -> None:
    """Copy to a run's ``evals`` what the runs beside it measured before training, on every split that it lacks."""
    for measured in sorted(evals.parents[1].glob("*/evals/before-*.json")):
        if not (evals / measured.name).exists():
            shutil.copyfile(measured, evals / measured.name)


def gather(split: str, label: str, seed: int, folder: Path) -> list[RunRow]:
    """One run's numbers, none when it is not finished; of a run that averages its weights those of the average too."""
    evals = folder / "evals"
    if not (evals / f"after-{split}.json").exists():
        return []
    copy_start(evals)
    if not (evals / f"before-{split}.json").exists():
        return []
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


def write_rows(path: Path, rows: Sequence[RunRow], **more: object) -> None:
    """Write what ``read_rows`` reads; ``more`` goes into every row."""
    lines = [json.dumps({**more, **row.model_dump(exclude_none=True)}) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def curve_of(row: RunRow) -> Run:
    """The curve that a row holds, as a run that can be drawn; its folder does not exist."""
    points = enumerate(zip(row.turns, row.success, strict=True), 1)
    metrics = [{"iteration": float(i), "turns_total": at, "success_rate": rate} for i, (at, rate) in points]
    return Run(Path(f"{row.label}-{row.seed}"), tuple(metrics), 0, ())


def plot_each(groups: Mapping[str, Sequence[Run]], output: Path, x: str, smooth: int) -> Path:
    """A small picture of success in training for every label but the first, whose mean is the grey line in all.

    For more methods than one picture can hold; arguments as for ``plot_curves``.
    """
    summed = {label: band(training_lines(group, x, smooth)) for label, group in groups.items()}
    (first, reference), *others = [(label, one) for label, one in summed.items() if one is not None]
    columns = min(ACROSS, len(others))
    rows = -(-len(others) // columns)
    figure = empty_figure(2.1 * columns, 1.55 * rows + 0.4)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for (label, one), axis in zip(others, axes, strict=False):
        axis.plot(reference.x, 100 * reference.mean, color="#aaaaaa", linewidth=1.4)
        axis.fill_between(one.x, 100 * one.low, 100 * one.high, color=COLOURS[0], alpha=0.15, linewidth=0)
        axis.plot(one.x, 100 * one.mean, color=COLOURS[0], linewidth=1.6)
        axis.set_title(literal(label), loc="left", fontsize=9, color=INK)
        plain_axes(axis)
    for axis in axes[len(others) :]:
        axis.set_visible(False)
    legend = f"success in training, %, over {X_NAMES[x]}; grey: {first}; band: lowest to highest seed"
    figure.supxlabel(legend, fontsize=8, color=GREY)
    return write_figure(figure, output)


def darkened(picture: Path) -> Path:
    """Write the picture for a dark page beside it: light and dark exchanged, hues kept."""
    light = imread(picture)[..., :3]
    dark = PAGE + np.clip((1 - light) @ HALF_ROUND.T, 0, 1) * (1 - PAGE)
    output = picture.with_name(f"{picture.stem}-dark.png")
    with durable.replacing(output, flushed=False) as part:
        imsave(part, dark, format="png", metadata={"Software": "gagpo"})
    return output


def print_table(table: Table) -> None:
    """The notes of a study and its table in Markdown."""
    print("\n".join([*table.notes(), "", *table.table().markdown()]))


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
    parser.add_argument("--out", type=Path, default=Path("lab/results"))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--add", action="store_true", help="keep the rows of runs that are not among these")
    arguments = parser.parse_intermixed_args()
    study = STUDIES[arguments.study]
    if unknown := {*(arguments.only or ()), *arguments.without} - study.variants.keys():
        parser.error(
            f"{arguments.study} has no variant {min(unknown)!r}; choose from {', '.join(map(repr, study.variants))}"
        )
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
    if not rows and arguments.table and raw.exists():
        print_table(Table.of(read_rows(raw)))  # rows that came with the repository
        return
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
    print_table(table)
    print(f"raw numbers: {raw}\nplot: {plot}, {darkened(plot)}")


if __name__ == "__main__":
    main()
