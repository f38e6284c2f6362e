"""The hard tests, as many as one has time for, and a report of one page.

python -m tests.hard.run                          everything at full scale: hours
python -m tests.hard.run damages --scale 0.1      one part, a tenth of it
python -m tests.hard.run exports damages=0.1      one part whole, and a tenth of another
python -m tests.hard.run mutations --only 4711    one case again
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.hard.actions import actions
from tests.hard.calls import calls
from tests.hard.damages import damages
from tests.hard.documents import documents
from tests.hard.handed_on import exports, journals, views
from tests.hard.interruptions import interruptions
from tests.hard.kills import kills
from tests.hard.listeners import requests
from tests.hard.mutations import mutations
from tests.hard.outcome import FAULT, FINE, REFUSED, Tally
from tests.hard.queries import queries
from tests.hard.ranks import ranks
from tests.hard.servers import answers

PARTS: dict[str, tuple[Callable[..., Tally | list[Tally]], int]] = {
    "kills": (kills, 50),
    "interruptions": (interruptions, 1_000),
    "damages": (damages, 1_000),
    "mutations": (mutations, 10_000),
    "actions": (actions, 100_000),
    "calls": (calls, 100_000),
    "answers": (answers, 10_000),
    "requests": (requests, 20_000),
    "queries": (queries, 20_000),
    "documents": (documents, 5_000),
    "exports": (exports, 2_000),
    "journals": (journals, 2_000),
    "views": (views, 1_000),
    "ranks": (ranks, 30),
}
SHOWN = 25  # faults in the report; a fault is rarely alone, and a page shall stay a page


@dataclass(frozen=True)
class Part:
    """What came of one part. scale: how much of it was carried out; seconds: by the clock, with what it is made of."""

    name: str
    scale: float
    seconds: float
    tallies: list[Tally]

    @property
    def count(self) -> int:
        return how_many(self.name, self.scale)

    @property
    def full(self) -> bool:
        return self.count >= PARTS[self.name][1]


def how_many(name: str, scale: float) -> int:
    return max(1, round(PARTS[name][1] * scale))


def run(scales: Mapping[str, float], seed: int, only: int | None = None, processes: int = 1) -> Iterator[Part]:
    """Carry out parts, each by its scale (at least once), so many at a time; each is given as soon as it is done."""
    if processes == 1:
        yield from (_carried_out(name, scale, seed, only) for name, scale in scales.items())
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        started = [pool.submit(_carried_out, name, scale, seed, only) for name, scale in scales.items()]
        yield from (one.result() for one in as_completed(started))


def _carried_out(name: str, scale: float, seed: int, only: int | None) -> Part:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"hard-{name}-") as folder:
        found = PARTS[name][0](Path(folder), how_many(name, scale), seed, only)
    return Part(name, scale, time.monotonic() - begin, found if isinstance(found, list) else [found])


def report(parts: list[Part], seed: int, command: str) -> str:
    """The page, in Markdown."""
    parts = sorted(parts, key=lambda part: list(PARTS).index(part.name))
    faults = [(case, words) for part in parts for tally in part.tallies for case, words in tally.faults]
    whole, rest = ([part.name for part in parts if part.full is full] for full in (True, False))
    lines = [
        "# Hard tests",
        "",
        f"Seed {seed}, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}. Fine: nothing happened, or nothing that matters. Refused: one line that names what is "
        "wrong. Fault: a traceback, a crash, a hang, or damage that went unnoticed.",
        "",
        f"- At full count: {', '.join(whole) or 'none'}.",
        f"- At less than full count: {', '.join(rest) or 'none'}.",
        "",
        "| part | count | of full | seconds |",
        "|---|---:|---:|---:|",
        *(f"| {part.name} | {part.count} | {_share(part)} | {part.seconds:.0f} |" for part in parts),
        "",
        "The count is that of each kind in a part which tries several worlds, clients or servers, and of all kinds "
        "together where files are mutated. The seconds are those of two processors that had other work too.",
        "",
        "| what | fine | refused | faults |",
        "|---|---:|---:|---:|",
        *(_row(tally) for part in parts for tally in part.tallies),
        "",
        f"{len(faults)} faults." if faults else "No fault.",
        "",
        "The same again:",
        "",
        f"    {command}",
        "",
    ]
    for case, words in faults[:SHOWN]:
        lines += [f"- `{case}`", f"  {words[:300]}"]
    if len(faults) > SHOWN:
        lines.append(f"- and {len(faults) - SHOWN} more")
    return "\n".join(lines).rstrip() + "\n"


def _share(part: Part) -> str:
    return "all" if part.full else f"{100 * part.count / PARTS[part.name][1]:.3g} %"


def _row(tally: Tally) -> str:
    counts = tally.counts
    return f"| {tally.name} | {counts[FINE]} | {counts[REFUSED]} | {counts[FAULT]} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part[=scale]", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="of parts that name none; 1 is the full length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat one case of a part that numbers its cases")
    parser.add_argument("--processes", type=int, default=1, help="parts carried out at the same time")
    parser.add_argument("--report", type=Path, default=Path("build/hard.md"))
    given = parser.parse_args()
    scales = {}
    for words in given.parts or PARTS:
        # A part, with its scale or without.
        name, _, scale = words.partition("=")
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose among {', '.join(PARTS)}")
        scales[name] = float(scale or given.scale)
    command = shlex.join(["python", "-m", "tests.hard.run", *sys.argv[1:]])
    done: list[Part] = []
    given.report.parent.mkdir(parents=True, exist_ok=True)
    for part in run(scales, given.seed, given.only, given.processes):
        # The page is written again after every part: hours are not to be lost with the last.
        done.append(part)
        page = report(done, given.seed, command)
        given.report.write_text(page, encoding="utf-8")
        hours = part.seconds / part.scale / 3600
        print(*map(_row, part.tallies), f"{part.name}: about {hours:.1f} hours at full scale", sep="\n", flush=True)
    print(f"\n{page}\nreport: {given.report}")
    return 1 if any(tally.faults for part in done for tally in part.tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
