"""Speed and memory of the ALFWorld engines, side by side in one run.

    python -m benchmarks.alfworld.speed --json results.json

Every engine plays in a process of its own, the engines in turn, so that a busy machine slows them alike. Steps are
random admissible commands; admissible commands and state keys are made at every step. Rates are per CPU second, which
another busy process changes little, and come with the lowest and the highest round. The ratio of two engines is the
median over the rounds of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.games.generate import generate
from gagpo.envs.alfworld.native.engine import NativeEngine
from gagpo.envs.alfworld.reference.engine import TextWorldEngine

ENGINES = ("native", "textworld", "textworld-memoised")


def bench(
    games: Sequence[Path | str] | None = None,
    engines: Sequence[str] = ENGINES,
    episodes: int = 8,
    turns: int = 30,
    rounds: int = 3,
    reference_steps: int = 40,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure each engine and return its rates beside those of the first slow one.

    games: game files; None makes 12 small and 12 full ones. episodes: of ``turns`` steps per game and round.
    reference_steps: steps of the engines other than the native one, which take up to 50 ms each.

    Of the native engine: ``first_episode_steps_per_s`` are steps in the first episode of games just loaded, in which
    most places are new; ``steps_per_s`` those of later episodes, on fresh states all the same: nothing remembers a
    state. ``cold_start_ms`` is from importing the engine to the first scene; ``load_ms`` the first reset of a game
    once the engine runs; MB are resident megabytes over those of a process that only imported ``envs``.
    """
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise InvalidArgument(
            f"unknown engine {unknown[0]!r}", key="engines", advice=f"choose among {', '.join(ENGINES)}"
        )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files = [str(game) for game in games] if games is not None else _generated(Path(folder), seed)
        results: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
        for turn in range(rounds):
            for name in engines:
                with get_context("spawn").Pool(1) as pool:
                    job = (name, files, episodes, turns, reference_steps, seed + turn)
                    results[name].append(pool.apply_async(measure, job).get(timeout=1800))
    report: dict[str, Any] = {"machine": machine(), "games": len(files), "turns": turns, "rounds": rounds}
    for name, rows in results.items():
        report[name] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        rates = [row["steps_per_s"] for row in rows]
        report[name]["steps_per_s_lowest"], report[name]["steps_per_s_highest"] = min(rates), max(rates)
    for other in engines:
        if other != "native" and "native" in results:
            pairs = zip(results["native"], results[other], strict=True)
            ratios = [ours["steps_per_s"] / theirs["steps_per_s"] for ours, theirs in pairs]
            report[f"native_over_{other}"] = {
                "median": round(statistics.median(ratios)),
                "lowest": round(min(ratios)),
                "highest": round(max(ratios)),
            }
    return report


def measure(
    name: str, files: list[str], episodes: int, turns: int, reference_steps: int, seed: int
) -> dict[str, float]:
    """Rates of one engine in this process."""
    base = resident_mb()
    started = time.process_time()
    engine = _engine(name)
    engine.reset(Path(files[0]))
    cold = time.process_time() - started
    loads = []
    native = name == "native"
    for game in files[1:] if native else files[1:3]:
        at = time.process_time()
        engine.reset(Path(game))
        loads.append(time.process_time() - at)
    played = files if native else files[:2]
    turns = turns if native else max(2, reference_steps // len(played))
    first = _steps(engine, played, 1, turns, seed)
    later = _steps(engine, played, episodes, turns, seed + 1) if native else first
    resets = 2000 if native else 4
    at = time.process_time()
    for _ in range(resets):
        engine.reset(Path(played[-1]))
    reset = (time.process_time() - at) / resets
    result = {
        "steps_per_s": round(later, 1),
        "first_episode_steps_per_s": round(first, 1),
        "resets_per_s": round(1 / reset, 1),
        "load_ms": round(1000 * sum(loads) / len(loads), 2),
        "cold_start_ms": round(1000 * cold, 1),
        "mb_per_environment": round(resident_mb() - base, 1),
    }
    engine.close()
    return result


def _steps(engine: NativeEngine | TextWorldEngine, files: list[str], episodes: int, turns: int, seed: int) -> float:
    """Steps per CPU second; choosing a command is not counted, resets are not either."""
    spent, count = 0.0, 0
    clock = time.process_time
    for number in range(episodes):
        for game in files:
            # The same commands for every engine, as long as they admit the same.
            rng = random.Random(f"{seed} {number} {Path(game).parent.name}")
            scene = engine.reset(Path(game))
            for _ in range(turns):
                command = rng.choice(scene.admissible_commands)
                at = clock()
                scene = engine.step(command)
                spent += clock() - at
                count += 1
    return count / spent


def _engine(name: str) -> NativeEngine | TextWorldEngine:
    return NativeEngine() if name == "native" else TextWorldEngine(memoise=name == "textworld-memoised")


def _generated(folder: Path, seed: int) -> list[str]:
    found = []
    for size in ("small", "full"):
        counts = {"train": 12, "valid_seen": 0, "valid_unseen": 0}
        made = generate(size, seed, counts, root=folder / size, splits=("train",))
        found += [str(folder / size / "train" / game.id / "game.tw-pddl") for game in made["train"]]
    return found


def resident_mb() -> float:
    """Resident memory of this process in megabytes (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def machine() -> str:
    """Python and processor, for the record."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"Python {platform.python_version()}, {model}, {os.cpu_count()} cores"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of the ALFWorld engines.")
    parser.add_argument("--games", nargs="*", help="game files; made on the spot if none are named")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args(arguments)
    report = json.dumps(bench(options.games or None, options.engines, rounds=options.rounds), indent=2)
    if options.json:
        options.json.write_text(report + "\n", encoding="utf-8")
    sys.stdout.write(report + "\n")


if __name__ == "__main__":
    main()
