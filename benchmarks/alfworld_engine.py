"""Speed and memory of the ALFWorld engines.

python benchmarks/alfworld_engine.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gagpo.envs.alfworld.reference.speed import ENGINES, bench


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
