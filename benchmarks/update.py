"""Processor time of an update on the rows that a config really collects, read plainly and as this code reads them.

    python -m benchmarks.update [CONFIG ...] [--rounds 5] [--set key=value ...]

One iteration is collected with the config's own model. The same rows, credit and weights are then learned from in five
ways, taking turns: every row read whole and mini-batches of rows (the plain path); rows without advantage left out;
beginnings in common read once; that with mini-batches of whole groups; that with sizes rounded, where a run would. The
figures are medians of processor time as ratios to the plain path, and the tokens read as a share of the rows' tokens.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gagpo.learning.packing import Packing, packing_of
from gagpo.learning.update import Updater
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer


class Everything(Updater):
    """Reads rows that cannot teach as well."""

    def _rows_with_gradient(self, rows, credit):  # type: ignore[no-untyped-def]
        return rows


class Collected(Exception):
    """Thrown in place of the first update, with what it was given."""


def collect(config: str, overrides: list[str]) -> tuple[Trainer, tuple[object, ...]]:
    """A trainer, and the arguments of its first update."""
    settings = load(config, [*overrides, "evaluation.before=false"])

    def stop(*given: object) -> None:
        raise Collected(*given)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(RunFolder.create(Path(folder) / "run", settings), quiet=True)
        trainer.learner.updater.update = stop  # type: ignore[method-assign, assignment]
        try:
            trainer.run()
        except Collected as found:
            return trainer, found.args
    raise SystemExit(f"{config} collected nothing")


def measure(config: str, overrides: list[str], rounds: int) -> dict[str, dict[str, float]]:
    trainer, (rows, credit, _, controls) = collect(config, overrides)
    learner, settings = trainer.learner, trainer.settings
    usual = packing_of(learner.model, settings)
    plain = Packing(usual.tokens)
    trees = Packing(usual.tokens, trees=usual.trees)
    ways = {
        "plain": (Everything, plain),
        "without silent rows": (Updater, plain),
        "beginnings once": (Updater, trees),
        "sizes rounded": (Updater, usual),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    read = {}
    for round_ in range(rounds + 1):
        for way, (kind, packing) in ways.items():
            model = copy.deepcopy(learner.model)
            updater = kind(
                replace(learner.updater.networks, policy=model, critic=None, reference=None),
                torch.optim.AdamW(model.parameters(), lr=settings.optimizer.learning_rate),
                learner.algorithm,
                replace(learner.updater.settings, packing=packing),
            )
            begun = time.process_time()
            metrics = updater.update(rows, credit, np.random.default_rng(round_), controls)
            if round_:  # the first compiles kernels
                seconds[way].append(time.process_time() - begun)
            read[way] = metrics["train_tokens_read"]
    middle = {way: statistics.median(spent) for way, spent in seconds.items()}
    return {
        way: {"seconds": round(spent, 3), "ratio": round(middle["plain"] / spent, 2), "read": round(read[way], 3)}
        for way, spent in middle.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an update beside the plain path.")
    parser.add_argument("configs", nargs="*", default=["alfworld-quickstart"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    found = {}
    for config in options.configs:
        found[config] = measure(config, options.set, options.rounds)
        print(f"{config}\n{'':22} {'seconds':>9} {'faster':>8} {'read':>7}")
        for way, of in found[config].items():
            print(f"{way:22} {of['seconds']:9.2f} {of['ratio']:7.2f}x {of['read']:7.1%}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
