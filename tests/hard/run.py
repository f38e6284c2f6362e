"""The hard tests, as many as there is time for.

python -m tests.hard.run                          everything at full count: hours
python -m tests.hard.run damages --scale 0.1      one part, a tenth of it
python -m tests.hard.run mutations --only 4711    one case again
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.hard.damages import damages
from tests.hard.hostile import actions, answers, queries
from tests.hard.interruptions import interruptions
from tests.hard.kills import kills
from tests.hard.mutations import mutations
from tests.hard.outcome import FAULT, FINE, REFUSED, Tally
from tests.hard.ranks import ranks
from tests.hard.web import web_actions, web_kills

PARTS: dict[str, tuple[Callable[..., Tally | list[Tally]], int]] = {
    "kills": (kills, 50),
    "interruptions": (interruptions, 1_000),
    "damages": (damages, 1_000),
    "mutations": (mutations, 10_000),
    "ranks": (ranks, 30),
    "actions": (actions, 100_000),
    "queries": (queries, 20_000),
    "answers": (answers, 10_000),
    "web_actions": (web_actions, 20_000),
    "web_kills": (web_kills, 50),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat one case of a part that numbers its cases")
    args = parser.parse_args()
    if unknown := sorted({*args.parts} - {*PARTS}):
        parser.error(f"there is no part {unknown[0]!r}; choose among {', '.join(PARTS)}")
    print(f"{'what':<40}{'count':>8}{'fine':>8}{'refused':>8}{'faults':>8}{'seconds':>9}")
    faults = 0
    for name in args.parts or PARTS:
        segment, full = PARTS[name]
        count = max(1, round(full * args.scale))
        with tempfile.TemporaryDirectory(prefix=f"hard-{name}-") as folder:
            results = segment(Path(folder), count, args.seed, args.only)
        for tally in results if isinstance(results, list) else [results]:
            counts = [tally.counts[type_name] for type_name in (FINE, REFUSED, FAULT)]
            row = "".join(f"{number:>8}" for number in (sum(counts), *counts))
            print(f"{tally.name:<40}{row}{tally.seconds:>9.0f}", flush=True)
            for case, tokens in tally.faults:
                print(f"  {case}\n    {tokens[:300]}", flush=True)
            faults += len(tally.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
