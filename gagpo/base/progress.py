"""Progress of long work: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 15.0  # seconds between the lines of a pipe


class Meter(Protocol):
    """The result of :func:`track`: ``advance`` by an amount, or ``reach`` a count of a new total."""

    def advance(self, amount: int = 1, note: str = "") -> None: ...

    def reach(self, done: int, total: int) -> None: ...


class _PlainMeter:
    def __init__(self, label: str, total: int, unit: str):
        self.label, self.total, self.unit = label, total, unit
        self.done = 0
        self.begun = self.last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.last >= PLAIN_EVERY:
            self.last = now
            self.line(note)

    def reach(self, done: int, total: int) -> None:
        self.total = total
        self.advance(done - self.done)

    def line(self, note: str = "") -> None:
        seconds = max(time.monotonic() - self.begun, 1e-9)
        rate = self.done / seconds
        left = (self.total - self.done) / rate if rate else float("inf")
        tail = f", {left:.0f} s left" if self.done < self.total else f" in {seconds:.0f} s"
        line = f"{self.label}: {self.done}/{self.total} {self.unit}, {rate:.1f}/s{tail} {note}"
        print(line.rstrip(), file=sys.stderr)


class _BarMeter:
    def __init__(self, progress: Progress, label: str, total: int, unit: str):
        self.progress, self.unit, self.begun = progress, unit, time.monotonic()
        self.task = progress.add_task(label, total=total, rate="", note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.progress.advance(self.task, amount)
        done = self.progress.tasks[0].completed
        rate = f"{done / max(time.monotonic() - self.begun, 1e-9):.1f} {self.unit}/s"
        self.progress.update(self.task, rate=rate, note=note)

    def reach(self, done: int, total: int) -> None:
        self.progress.update(self.task, total=total)
        self.advance(done - int(self.progress.tasks[0].completed))


@contextmanager
def track(label: str, total: int, unit: str = "", quiet: bool = False) -> Iterator[Meter]:
    """Show the progress of ``total`` units of work on standard error; call ``advance`` as they are done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        plain = _PlainMeter(label, total, unit)
        if quiet:
            plain.last = float("inf")
        yield plain
        if not quiet and time.monotonic() - plain.begun > 2:
            plain.line()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield _BarMeter(progress, label, total, unit)
