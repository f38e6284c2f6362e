"""The hard tests, as many as one has time for, and a report of one page.

python -m tests.hard.run                          everything at full scale: hours
python -m tests.hard.run damages --scale 0.1      one part, a tenth of it
python -m tests.hard.run mutations --only 4711    one case again
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.hard.actions import actions
from tests.hard.damages import damages
from tests.hard.interruptions import interruptions
from tests.hard.kills import kills
from tests.hard.mutations import mutations
from tests.hard.outcome import FAULT, FINE, REFUSED, Tally

PARTS: dict[str, tuple[Callable[..., Tally | list[Tally]], int]] = {
    "kills": (kills, 50),
    "interruptions": (interruptions, 1_000),
    "damages": (damages, 1_000),
    "mutations": (mutations, 10_000),
    "actions": (actions, 100_000),
}
SHOWN = 25  # faults in the report; a fault is rarely alone, and a page shall stay a page


def run(parts: list[str], scale: float, seed: int, only: int | None = None) -> list[Tally]:
    """Carry out the ``parts``, each ``scale`` times as often as at full length (at least once)."""
    tallies: list[Tally] = []
    for name in parts:
        part, full = PARTS[name]
        with tempfile.TemporaryDirectory(prefix=f"hard-{name}-") as folder:
            found = part(Path(folder), max(1, round(full * scale)), seed, only)
        tallies += found if isinstance(found, list) else [found]
        for tally in tallies[-len(found) if isinstance(found, list) else -1 :]:
            print(_row(tally), flush=True)
    return tallies


def report(tallies: list[Tally], scale: float, seed: int) -> str:
    """The page, in Markdown."""
    faults = [(case, words) for tally in tallies for case, words in tally.faults]
    lines = [
        "# Hard tests",
        "",
        f"Scale {scale:g}, seed {seed}, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}. Fine: nothing happened, or nothing that matters. Refused: one line "
        "that names what is wrong. Fault: a traceback, a crash, a hang, or damage that went unnoticed.",
        "",
        "| part | fine | refused | faults | seconds |",
        "|---|---:|---:|---:|---:|",
        *map(_row, tallies),
        "",
        f"{len(faults)} faults." if faults else "No fault.",
        "",
    ]
    for case, words in faults[:SHOWN]:
        lines += [f"- `{case}`", f"  {words[:300]}"]
    if len(faults) > SHOWN:
        lines.append(f"- and {len(faults) - SHOWN} more")
    return "\n".join(lines).rstrip() + "\n"


def _row(tally: Tally) -> str:
    counts = tally.counts
    return f"| {tally.name} | {counts[FINE]} | {counts[REFUSED]} | {counts[FAULT]} | {tally.seconds:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat one case of interruptions, damages or mutations")
    parser.add_argument("--report", type=Path, default=Path("build/hard.md"))
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose among {', '.join(PARTS)}")
    tallies = run(given.parts or list(PARTS), given.scale, given.seed, given.only)
    page = report(tallies, given.scale, given.seed)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(page, encoding="utf-8")
    print(f"\n{page}\nreport: {given.report}")
    return 1 if any(tally.faults for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
