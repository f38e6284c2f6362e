"""Progress of long work: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 15.0  # seconds between the lines of a pipe


class Meter:
    """Shows how much of ``total`` is done: in ``bar``, or without one in plain lines."""

    def __init__(self, label: str, total: int, unit: str, bar: Progress | None, every: float):
        self.label, self.total, self.unit, self.bar, self.every = label, total, unit, bar, every
        self.done = 0
        self.begun = self.last = time.monotonic()
        if bar is not None:
            self.task = bar.add_task(label, total=total, rate="", note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if self.bar is not None:
            rate = f"{self._rate(now):.1f} {self.unit}/s"
            self.bar.update(self.task, completed=self.done, rate=rate, note=note)
        elif now - self.last >= self.every:
            self.last = now
            self.line(note)

    def line(self, note: str = "") -> None:
        now = time.monotonic()
        rate = self._rate(now)
        left = (self.total - self.done) / rate if rate else float("inf")
        tail = f", {left:.0f} s left" if self.done < self.total else f" in {now - self.begun:.0f} s"
        line = f"{self.label}: {self.done}/{self.total} {self.unit}, {rate:.1f}/s{tail} {note}"
        print(line.rstrip(), file=sys.stderr)

    def _rate(self, now: float) -> float:
        return self.done / max(now - self.begun, 1e-9)


@contextmanager
def track(label: str, total: int, unit: str = "", quiet: bool = False) -> Iterator[Meter]:
    """Show the progress of ``total`` units of work on standard error; call ``advance`` as they are done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        meter = Meter(label, total, unit, None, float("inf") if quiet else PLAIN_EVERY)
        yield meter
        if not quiet and time.monotonic() - meter.begun > 2:
            meter.line()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        yield Meter(label, total, unit, bar, PLAIN_EVERY)
