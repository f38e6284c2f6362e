"""Memory and processor time of updates in bfloat16 on a CPU whose rows have other sizes every time.

    python -m benchmarks.half_precision [--updates 200] [--ways exact bounded rounded]

torch and oneDNN compile a kernel for every size of every product and keep 1,024 each. *exact*: sizes as they come, and
as many kernels as the libraries keep. *bounded*: as few as a run keeps. *rounded*: that, and sizes made up as in a run.
*float32* for comparison. Each way in a process of its own, on the same rows: random episodes that end at random turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from gagpo.algorithms import load as load_algorithm
from gagpo.credit import Credit
from gagpo.data import Row
from gagpo.learning.packing import Packing
from gagpo.learning.update import Updater, UpdateSettings
from gagpo.model.dtypes import KERNELS
from gagpo.model.networks import Networks
from gagpo.sft.small_model import ModelShape, create, train_tokenizer

WAYS = ("exact", "bounded", "rounded", "float32")
UNBOUNDED = dict.fromkeys(KERNELS, "1024")  # what the libraries keep


def make_rows(vocabulary: int, rng: np.random.Generator) -> list[Row]:
    """Eight groups of eight tries with one prompt each, 2 to 15 turns."""
    rows: list[Row] = []
    turn = 0
    for group in range(8):
        prompt = rng.integers(5, vocabulary, int(rng.integers(60, 120)))
        for _ in range(8):
            turns = int(rng.integers(2, 16))
            parts, places, length = [prompt], [], len(prompt)
            for _ in range(turns):
                parts.append(rng.integers(5, vocabulary, 4 + int(rng.integers(12, 30))))
                places += range(length, length + 4)
                length += len(parts[-1])
            number_K = np.repeat(np.arange(turn, turn + turns), 4)
            token_K = 4 * turn + np.arange(4 * turns)
            ids = np.concatenate(parts).astype(np.int32)
            rows.append(Row(ids, np.array(places), number_K, token_K, np.full(4 * turns, -6.0, np.float32), 1.0, group))
            turn += turns
    return rows


def run(way: str, updates: int) -> None:
    """Print memory and time after every tenth of the updates."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["take mug 1 from shelf 2"] * 9, 300)
    model = create(ModelShape(), tokenizer, seed=0)
    updater = Updater(
        Networks(model, autocast=lambda: torch.autocast("cpu", torch.bfloat16, enabled=way != "float32")),
        torch.optim.AdamW(model.parameters(), lr=1e-5),
        load_algorithm("cispo"),
        UpdateSettings(minibatches=4, packing=Packing(4096, trees=True, rounded=way == "rounded")),
    )
    rng = np.random.default_rng(0)
    begun = time.process_time()
    every = max(1, updates // 10)
    for number in range(1, updates + 1):
        rows = make_rows(len(tokenizer), rng)
        turns = 1 + int(rows[-1].turn_K[-1])
        updater.update(rows, Credit(rng.standard_normal(turns), np.full(turns, 4)), rng)
        if number % every == 0:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            spent = (time.process_time() - begun) / every
            print(json.dumps({"way": way, "updates": number, "mb": resident >> 20, "seconds": spent}), flush=True)
            begun = time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure updates in half precision on a CPU.")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--run", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    if options.run:
        run(options.run, options.updates)
        return
    found = []
    for way in options.ways:
        kept = UNBOUNDED if way == "exact" else KERNELS
        command = [sys.executable, __file__, "--run", way, "--updates", str(options.updates)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **kept}) as child:
            assert child.stdout is not None
            for line in child.stdout:
                found.append(json.loads(line))
                print("{way:8} {updates:4d} updates {mb:6d} MB {seconds:6.2f} s each".format(**found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
