"""How fast credit and objectives are: ``python benchmarks/credit.py [--turns 100000] [--tokens 1000000]``.

Prints the tables of ``gagpo bench credit`` and, with ``--json FILE``, writes the numbers. Ends with status 1 when a
target is missed: 0.5 s for any credit of 100,000 turns, ten times as many turns in at most 15 times as long (caches
count for something), an objective and its gradient within 1.2 times a plain PPO clip.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gagpo.planning.speed import bench_credit

SECONDS, GROWTH, RATIO = 0.5, 15.0, 1.2


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure credit and objectives.")
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    result = bench_credit(options.turns, options.tokens, options.repeats)
    print(f"{'credit':22} {options.turns:>10,} turns {10 * options.turns:>12,} turns   growth")
    missed = []
    for name, seconds in result["seconds"].items():
        tenfold = result["seconds_tenfold"][name]
        print(f"{name:22} {seconds:>14.3f} s {tenfold:>16.3f} s {tenfold / seconds:>8.1f}")
        if seconds > SECONDS * options.turns / 100_000 or tenfold > GROWTH * max(seconds, 0.01):
            missed.append(name)
    print(f"\n{'objective of':22} time relative to a plain PPO clip, {options.tokens:,} tokens")
    for name, ratio in result["ratio"].items():
        print(f"{name:22} {ratio:>8.2f}")
        if ratio > RATIO:
            missed.append(f"the objective of {name}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall targets met")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
