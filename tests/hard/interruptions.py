"""A training run is interrupted at random lines of our code, says how to go on, and ends as if it had not been.

What a signal does depends on the line it comes at: between two of them a cache may have grown and not know it, or a
thread may have been made and not begun. So each case takes a line that a run passes, and one of the times it passes it.
"""

from __future__ import annotations

import functools
import gc
import io
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

import gagpo
from gagpo.runs.run_folder import RunFolder
from gagpo.training.trainer import train
from tests.hard.kills import difference
from tests.hard.outcome import Outcome, Tally, attempt, command
from tests.hard.small_run import make_model, make_run, write_settings

PLAN: dict[str, dict[str, Any]] = {
    "training": {"iterations": 3},
    "rollout": {"workers": 2},
    "evaluation": {"every": 1},
}
HOME = str(Path(gagpo.__file__).parent)
BEGIN = "_train"  # where the run begins; before it, an interruption is Python's and Typer's own affair
LEAVING_SECONDS = 30.0

Place = tuple[str, int]  # file and line


def interruptions(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Interrupt ``count`` runs once each; every one is continued until it is done, then compared."""
    begin = time.monotonic()
    run = make_run(folder, **PLAN)
    settings = write_settings(folder / "interruptions.yaml", make_model(folder), **PLAN)
    passed: Counter[Place] = Counter()
    _watched(_recorder(passed), settings, folder / "recorded")
    locations = sorted(passed)
    tally = Tally("interruptions")
    for case in range(count) if only is None else [only]:
        rng = random.Random(f"{seed}/{case}/interruptions")
        location = rng.choice(locations)
        time_of_it = rng.randint(1, passed[location])
        runs = folder / f"interrupted-{case}"
        outcome = attempt(functools.partial(_interrupted, settings, runs, run, location, time_of_it))
        where = f"{location[0].removeprefix(HOME + '/')}:{location[1]}, time {time_of_it}"
        tally.add(
            f"interruptions --seed {seed} --only {case} ({where})",
            Outcome(outcome.verdict, f"{where}: {outcome.words}"),
        )
    tally.seconds = time.monotonic() - begin
    return tally


def _interrupted(settings: Path, runs: Path, whole: Path, place: Place, time_of_it: int) -> None:
    """In a process of its own: one run, interrupted and continued. AssertionError says what went wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[Place] = []
    status, messages = _watched(_interrupter(place, time_of_it, done), settings, runs)
    if not done:  # another thread was quicker this time, and the run did not come by so often
        assert status == 0, messages
        return
    assert status == 130, f"exit status {status}: {' | '.join(messages.splitlines()[-3:])}"
    gc.collect()  # what a traceback held in a circle ends with it
    _, remaining = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=LEAVING_SECONDS)
    assert not remaining, f"{len(remaining)} processes are left"
    run = runs / "corridor"
    if not (run / "config.yaml").exists():
        return
    trained = (run / "evals" / "after-test.json").exists()
    assert trained or f"continue with: gagpo train --resume {run}" in messages, messages
    train(RunFolder.open(run), quiet=True)
    differs = difference(whole, run)
    assert not differs, differs


def _watched(trace: Callable[..., Any], settings: Path, runs: Path) -> tuple[object, str]:
    """The exit status of a run whose lines ``trace`` sees, and what it said."""
    string_io = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    argv = sys.argv
    try:
        with redirect_stdout(string_io), redirect_stderr(string_io):
            sys.settrace(trace)
            command("train", str(settings), "--runs", str(runs), "--quiet")
    except SystemExit as end:
        return end.code, string_io.getvalue()
    finally:
        sys.settrace(None)
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0, string_io.getvalue()


def _tracing(line: Callable[[Place], None]) -> Callable[..., Any]:
    """A trace function that calls ``line`` at every line of ours that the main thread passes since the run began."""
    begun = False

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            line((frame.f_code.co_filename, frame.f_lineno))
        return local

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal begun
        begun = begun or frame.f_code.co_name == BEGIN
        return local if begun and frame.f_code.co_filename.startswith(HOME) else None

    return trace


def _recorder(passed: Counter[Place]) -> Callable[..., Any]:
    return _tracing(lambda place: passed.update([place]))


def _interrupter(place: Place, time_of_it: int, done: list[Place]) -> Callable[..., Any]:
    left = time_of_it

    def line(at: Place) -> None:
        nonlocal left
        if at == place:
            left -= 1
            if left == 0:
                done.append(at)
                signal.raise_signal(signal.SIGINT)

    return _tracing(line)
