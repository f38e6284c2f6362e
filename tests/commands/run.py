"""Runs every command of every page, in order, in a fresh clone with the base dependencies alone.

    python -m tests.commands.run                     # all pages; README first, then in the order of the menu
    python -m tests.commands.run docs/first-run.md    # one; --clone FOLDER goes on in a clone that was made before
    python -m tests.commands.run README.md:120       # from that line on

What stands before a block in a comment shortens it or leaves it out; see tests/commands/pages.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.commands.pages import KEPT, ROOT, Block, blocks, pages

LONGEST = 1800  # seconds of one block
SHOWN = 25  # lines of a block that failed


@dataclass(frozen=True)
class Outcome:
    """How a block went. status: None where it was left out."""

    block: Block
    status: int | None
    seconds: float
    output: str

    @property
    def failed(self) -> bool:
        return self.status is not None and self.status != int(self.block.marks.get("status", 0))


def clone(folder: Path) -> Path:
    """A fresh copy of what is committed, as a reader gets it."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def install(folder: Path) -> Path:
    """The clone's own environment with the base dependencies; the folder of its programs."""
    subprocess.run(["make", ".venv/.base"], cwd=folder, check=True)
    return folder / ".venv" / "bin"


def run_page(page: Path, folder: Path, programs: Path | None, first: int = 1) -> Iterator[Outcome]:
    """Run the blocks of ``page`` from line ``first`` on in ``folder``; programs: what stands first on the path."""
    retained: list[str] = []
    for block in blocks(page):
        # A file is written, a block of commands is run, what is marked is told.
        if "skip" in block.marks:
            yield Outcome(block, None, 0.0, block.marks["skip"])
        elif block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        else:
            if block.line >= first:
                yield _run(block, "\n".join(retained), folder, programs)
            retained += [line for line in block.lines() if line.startswith(KEPT)]


def _run(block: Block, kept: str, folder: Path, programs: Path | None) -> Outcome:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if programs:
        environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    begun = time.monotonic()
    script = f"set -euo pipefail\n{kept}\n{block.script()}\n"
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, timeout=LONGEST, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = 124, str(late.stdout or b"", "utf-8", "replace") if isinstance(late.stdout, bytes) else ""
    return Outcome(block, status, time.monotonic() - begun, output)


def told(outcomes: Iterable[Outcome]) -> int:
    """Print every outcome as it comes; how many failed."""
    failures = 0
    for outcome in outcomes:
        word = "left out" if outcome.status is None else "FAILED" if outcome.failed else "ok"
        first = outcome.output if outcome.status is None else outcome.block.lines()[0]
        print(f"{outcome.block.name:<34} {word:<9} {outcome.seconds:6.1f} s  {first[:90]}", flush=True)
        if outcome.failed:
            failures += 1
            lines = re.sub(r"[^\n]*\r", "", outcome.output).splitlines()[-SHOWN:]
            print("\n".join(f"    {line[:200]}" for line in [f"status {outcome.status}", *lines]), flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="*", help="pages, PAGE or PAGE:LINE; all of the site's menu by default")
    parser.add_argument("--clone", type=Path, help="a clone to make, or to go on in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gagpo-pages-") as temporary:
        folder = arguments.clone or Path(temporary) / "gagpo"
        if not (folder / ".git").exists():
            clone(folder)
        programs = install(folder)
        failures = 0
        for name in arguments.page or map(str, pages()):
            page, _, line = name.partition(":")
            # README itself has to say how its commands come onto the path.
            on_path = None if Path(page).name == "README.md" else programs
            failures += told(run_page(Path(page).resolve(), folder.resolve(), on_path, int(line or 1)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
