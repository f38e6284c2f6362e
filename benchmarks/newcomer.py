"""Environments of a newcomer, from no model to the last evaluation: do they visibly learn with the commands as printed?

    python -m benchmarks.newcomer                        # two environments, five seeds each, 90 s each
    python -m benchmarks.newcomer --environments walk --seeds 2
    python -m benchmarks.newcomer table lab/results/newcomer.jsonl

``walk`` is what `gagpo new walk` writes, ``guess`` is in docs/your-environment.md.
A seed is that of demonstrations, model and training. One line per environment and seed is added to ``--out`` (those
that it holds are not played again): success on the unseen tasks before and after, the last panel of SFT, and seconds of
the clock and of the processors, all processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gagpo.base import durable
from gagpo.base.tables import Table
from gagpo.eval.results import EvalResult
from gagpo.interop.scaffold import new_environment

ROOT = Path(__file__).parents[1]
PAGES = {"guess": ROOT / "docs" / "your-environment.md"}
ENVIRONMENTS_TRIED = ("walk", *PAGES)
RISE = 25.0  # points that each seed should gain


def write_env(env: str, folder: Path) -> None:
    """Write the files of ``environment`` as a newcomer would: by `gagpo new`, or copied from its page."""
    if env not in PAGES:
        new_environment(env, folder)
        return
    page = PAGES[env].read_text(encoding="utf-8")
    for language, name in (("python", f"{env}.py"), ("yaml", f"{env}.yaml")):
        blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (folder / name).write_text(next(text for text in blocks if text.startswith(f"# {name}")), encoding="utf-8")


def learn(env: str, seed: int, folder: Path, quiet: bool = True) -> dict[str, Any]:
    """Warm-start and train in ``folder``, which holds the environment's files; what came of it, shares in percent."""
    model = f"data/models/{env}-{seed}"
    begun, used = time.monotonic(), _processor_seconds()
    _gagpo(folder, "sft", f"{env}.yaml", f"model={model}", f"sft.seed={seed}", quiet=quiet)
    warm = time.monotonic() - begun
    _gagpo(folder, "train", f"{env}.yaml", f"model={model}", f"seed={seed}", f"name={env}-{seed}", quiet=quiet)
    results = {
        stage: EvalResult.load(folder / "runs" / f"{env}-{seed}" / "evals" / f"{stage}-test.json")
        for stage in ("before", "after")
    }
    measured = json.loads((folder / model / "sft.json").read_text(encoding="utf-8"))["measured"][-1]
    return {
        "environment": env,
        "seed": seed,
        "episodes": results["after"].episodes,
        **{stage: round(100 * result.success.value, 1) for stage, result in results.items()},
        "sft": measured,
        "sft_seconds": round(warm),
        "seconds": round(time.monotonic() - begun),
        "processor_seconds": round(_processor_seconds() - used),
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per environment: the seeds' gains, and how many are as large as they should be."""
    lines = []
    for env in dict.fromkeys(row["environment"] for row in rows):
        own = [row for row in rows if row["environment"] == env]
        gains = [row["after"] - row["before"] for row in own]
        lines.append(
            [
                env,
                " ".join(f"{row['before']:.0f}" for row in own),
                " ".join(f"{row['after']:.0f}" for row in own),
                " ".join(f"{gain:+.0f}" for gain in gains),
                f"{sum(gain >= RISE for gain in gains)} of {len(gains)}",
                " ".join(str(row["processor_seconds"]) for row in own),
            ]
        )
    head = ["environment", "before %", "after %", "points", f"at least {RISE:.0f}", "processor s"]
    return Table(head, lines)


def _gagpo(folder: Path, *words: str, quiet: bool) -> None:
    where = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    hidden = subprocess.DEVNULL if quiet else None
    subprocess.run(
        [sys.executable, "-m", "gagpo", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": where},
        stdout=hidden,
        stderr=hidden,
        check=True,
    )


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="Do a newcomer's environments learn?")
    commands = parser.add_subparsers(dest="command")
    shown = commands.add_parser("table", help="print the table of raw rows")
    shown.add_argument("rows", type=Path)
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS_TRIED, default=ENVIRONMENTS_TRIED)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "results" / "newcomer.jsonl")
    given = parser.parse_args()
    if given.command == "table":
        print("\n".join(table(_read(given.rows)).markdown()))
        return
    for seed in range(1, given.seeds + 1):
        for env in given.envs:
            # One environment and seed in a folder of its own, unless it has been played.
            if any((row["environment"], row["seed"]) == (env, seed) for row in _read(given.out)):
                continue
            with tempfile.TemporaryDirectory() as folder:
                write_env(env, Path(folder))
                row = learn(env, seed, Path(folder))
            durable.append_line(given.out, json.dumps(row))
            print(json.dumps(row), flush=True)
    print("\n".join(table(_read(given.out)).markdown()))


if __name__ == "__main__":
    main()
