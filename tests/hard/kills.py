"""A training run is ended at random again and again, by three signals, and ends bit for bit like an undisturbed one."""

from __future__ import annotations

import functools
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from gagpo.eval.results import EvalResult
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from tests.hard.outcome import FAULT, FINE, Outcome, Tally
from tests.hard.small_run import make_model, make_run, write_settings

PLAN: dict[str, dict[str, Any]] = {
    "training": {"iterations": 6, "save_every": 2},
    "rollout": {"workers": 1},
    "evaluation": {"every": 1, "episodes_per_task": 8},  # most of a run's time, so that many a signal comes in one
}
SIGNALS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
"""The signals, and the exit status of a run that one ends."""
CLOCK = ("seconds", "per_second", "busy", "time")  # words in the names of metrics that no two runs share
_RUN_SECONDS = 600.0
_ORPHAN_SECONDS = 30.0


def kills(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Kill runs ``count`` times in all, at random instants; each is continued until it is done, then compared."""
    del only  # one kill cannot be repeated alone: its instant is one of the clock's
    begin = time.monotonic()
    rng = random.Random(f"{seed}/kills")
    whole_begin = time.monotonic()
    run = make_run(folder, **PLAN)
    length = time.monotonic() - whole_begin
    settings = write_settings(folder / "kills.yaml", make_model(folder), **PLAN)
    tally = Tally("random kills")
    runs, killed = folder / "killed", 0
    while killed < count:
        shutil.rmtree(runs, ignore_errors=True)
        while True:
            process = start(settings, runs)
            number = rng.choice(list(SIGNALS))
            died = _kill_within(process, rng.uniform(0.0, length) if killed < count else _RUN_SECONDS, number)
            if died.verdict == FAULT:
                tally.add(f"kills --seed {seed}, kill {killed + 1}", died)
                return tally
            if died.words == "done":
                break
            killed += 1
            tally.add("", died)
        differs = difference(run, runs / "corridor")
        if differs:
            tally.add(f"kills --seed {seed}, after kill {killed}", Outcome(FAULT, differs))
    tally.seconds = time.monotonic() - begin
    return tally


def start(settings: Path, runs: Path) -> subprocess.Popen[str]:
    """Start the run, or continue it where it is."""
    tokens = ["train", str(settings), "--auto", "--runs", str(runs), "--quiet"]
    # A program started in the background ignores SIGINT, and its children with it: undo that.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "gagpo", *tokens]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed)


def _kill_within(process: subprocess.Popen[str], seconds: float, number: signal.Signals) -> Outcome:
    """Send a signal to ``process`` after ``seconds``, unless it is done by then, and look for what it leaves behind."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=_ORPHAN_SECONDS)
        # Before the command begins, SIGTERM and SIGINT are Python's own affair.
        if process.returncode not in (0, SIGNALS[number], -number) or "this is a bug in gagpo" in errors:
            return Outcome(FAULT, f"exit status {process.returncode} after {number.name}: {errors[-300:]}")
        removed, remaining = psutil.wait_procs(family, timeout=_ORPHAN_SECONDS)
        for orphan in remaining:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
        if remaining:
            return Outcome(
                FAULT, f"{len(remaining)} of {len(removed) + len(remaining)} processes outlive the killed run"
            )
        return Outcome(FINE, f"{number.name} after {seconds:.1f} s")
    if process.returncode:
        return Outcome(FAULT, f"exit status {process.returncode}: {' | '.join(errors.strip().splitlines()[-3:])}")
    return Outcome(FINE, "done")


def difference(whole: Path, other: Path) -> str:
    """Where two finished runs differ: weights, state, metrics, evaluations or temporary files; empty if bit-equal."""
    item, two = (checkpoints.latest(run / "checkpoints") for run in (whole, other))
    assert item is not None and two is not None
    weights = [load_file(f"{saved.model}/model.safetensors") for saved in (item, two)]
    if weights[0].keys() != weights[1].keys():
        return "the runs end with other parameters"
    for name, tensor in weights[0].items():
        if not bool((tensor == weights[1][name]).all()):
            return f"parameter {name} differs"
    rows = [[_timeless(row) for row in RunFolder.open(run).metrics()] for run in (whole, other)]
    if rows[0] != rows[1]:
        return f"the metrics differ: {len(rows[0])} and {len(rows[1])} rows"
    if item.state() != two.state():
        return "the state of the last checkpoint differs"
    if remaining := [str(path.relative_to(other)) for path in other.rglob("*.part")]:
        return f"{remaining[0]} is left"
    for file in sorted((whole / "evals").glob("*.json")):
        if not (other / "evals" / file.name).exists():
            return f"evaluation {file.name} is missing"
        if EvalResult.load(file).tasks != EvalResult.load(other / "evals" / file.name).tasks:
            return f"evaluation {file.name} differs"
    return ""


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(word in key for word in CLOCK)}
