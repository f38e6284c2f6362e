"""One of several ranks is killed or stopped at a random time: all end, and the run resumes bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.hard.kills import difference, start
from tests.hard.outcome import FAULT, FINE, Outcome, Tally
from tests.hard.small_run import make_model, write_settings

PLAN: dict[str, dict[str, Any]] = {"training": {"iterations": 4}, "rollout": {"workers": 1}}
RANKS = 2
TIMEOUT = 10.0  # seconds without a sign of life, as the run is told
_END_SECONDS = 180.0  # for the others to notice, to save and to leave
_DONE_SECONDS = 600.0


def ranks(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Kill or stop a rank ``count`` times in all; each run is continued until it is done, then compared."""
    del only  # one kill cannot be repeated alone: its instant is one of the clock's
    begin = time.monotonic()
    rng = random.Random(f"{seed}/ranks")
    settings = write_settings(folder / "ranks.yaml", make_model(folder), **PLAN)
    text = settings.read_text(encoding="utf-8")
    settings.write_text(f"{text}\nprocesses: {RANKS}\nranks: {{timeout: {TIMEOUT}}}\n", encoding="utf-8")
    tally = Tally("ranks that are lost")
    whole_begin = time.monotonic()
    start(settings, folder / "whole").communicate(timeout=_DONE_SECONDS)
    length = time.monotonic() - whole_begin
    runs, done = folder / "lost", 0
    while done < count:
        shutil.rmtree(runs, ignore_errors=True)
        finished = False
        while not finished:
            process = start(settings, runs)
            item = rng.choice((signal.SIGKILL, signal.SIGSTOP)), rng.randrange(RANKS), rng.uniform(0.0, length)
            outcome, finished = _lose(process, *(item if done < count else (None, 0, _DONE_SECONDS)))
            done += not finished
            tally.add(f"ranks --seed {seed}, loss {done}", outcome)
            if outcome.verdict == FAULT:
                return tally
        if differs := difference(folder / "whole" / "corridor", runs / "corridor"):
            tally.add(f"ranks --seed {seed}, after loss {done}", Outcome(FAULT, differs))
    tally.seconds = time.monotonic() - begin
    return tally


def _lose(
    process: subprocess.Popen[str], sign: signal.Signals | None, rank: int, seconds: float
) -> tuple[Outcome, bool]:
    """Send ``sign`` to a rank after ``seconds``, unless all are done by then; what came of it, and whether they are."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        family = psutil.Process(process.pid).children(recursive=True)
        direct = [item for item in psutil.Process(process.pid).children() if "gagpo" in _words(item)]
        if sign is None:
            process.kill()
            return Outcome(FAULT, f"not done after {seconds:.0f} s"), True
        if rank < len(direct):
            with suppress(psutil.NoSuchProcess):
                direct[rank].send_signal(sign)
        else:
            process.terminate()  # none has begun yet
        try:
            process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(
                FAULT, f"rank {rank} got {sign.name}, and the run has not ended in {_END_SECONDS:.0f} s"
            ), True
        _, remaining = psutil.wait_procs(family, timeout=30)
        for orphan in remaining:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
        if remaining:
            return Outcome(FAULT, f"rank {rank} got {sign.name}, and {len(remaining)} processes are left"), True
        return Outcome(FINE, f"rank {rank} got {sign.name} after {seconds:.1f} s"), process.returncode == 0
    if process.returncode:
        return Outcome(FAULT, f"exit status {process.returncode}: {' | '.join(errors.strip().splitlines()[-3:])}"), True
    return Outcome(FINE, "done"), True


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
