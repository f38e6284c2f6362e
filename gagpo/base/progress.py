"""Progress of long work: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gagpo.base.tables import duration
from gagpo.base.terminal import cleaned, printable, raw

PLAIN_EVERY = 15.0  # seconds between the lines of a pipe
INNER_EVERY = 60.0  # the same for a part of longer work
RECENT = 50  # calls of advance that the rate is taken from
FEW = 5  # units before there is a rate


class Meter:
    """Shows how much of ``total`` is done: in ``bar``, or without one in plain lines.

    done: units that an interrupted run has done; they do not count for the rate.
    bound: the work may end before ``total``.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        bar: Progress | None,
        every: float,
        done: int = 0,
        bound: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.label = label
        self.total = total
        self.unit = unit
        self.bar = bar
        self.every = every
        self.done = self.first = done
        self.bound = "at most " if bound else ""
        self._clock = clock
        self.begun = self.last = clock()
        self._recent = deque([(self.begun, done)], maxlen=RECENT)
        if bar is not None:
            self.task = bar.add_task(printable(label), total=total, completed=done, state="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        now = self._clock()
        self._recent.append((now, self.done))
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, state=self.state(note))
        elif now - self.last >= self.every:
            self.last = now
            self.line(note)

    def resize(self, total: int) -> None:
        """Change ``total``, where it is known only when the work begins."""
        self.total = total
        if self.bar is not None:
            self.bar.update(self.task, total=total)

    def line(self, note: str = "") -> None:
        print(f"{self.label}: {self.state(note)}", file=sys.stderr)

    def state(self, note: str = "") -> str:
        """What is done, how fast, and what is left."""
        counted = f"{self.done:,} of {self.bound}{self.total:,} {self.unit}"
        (before, done), (now, _) = self._recent[0], self._recent[-1]
        rate = (self.done - done) / max(now - before, 1e-9)
        if self.done == self.total:
            counted += f" in {duration(now - self.begun)}"
        elif rate and self.done - self.first >= FEW:
            counted += f", {rate:.1f}/s, {self.bound}{duration((self.total - self.done) / rate)} left"
        return printable(f"{counted} {note}".rstrip())


@contextmanager
def track(
    label: str,
    total: int,
    unit: str = "",
    quiet: bool = False,
    done: int = 0,
    bound: bool = False,
    inner: bool = False,
) -> Iterator[Meter]:
    """Show the progress of ``total`` units of work on standard error; call ``advance`` as they are done.

    done, bound: see :class:`Meter`.
    inner: a part of longer work, which prints a line at its own end: in a pipe this part prints one only if it takes
        long.
    """
    console = Console(file=raw(sys.stderr))
    if quiet or not console.is_terminal:
        every = INNER_EVERY if inner else PLAIN_EVERY
        meter = Meter(label, total, unit, None, float("inf") if quiet else every, done, bound)
        with nullcontext() if quiet else _repeating(meter):
            yield meter
        if not quiet and not inner and time.monotonic() - meter.begun > 2:
            meter.line()
        return
    label_column = TextColumn("{task.description}", markup=False)
    columns = (label_column, BarColumn(bar_width=None), TextColumn("{task.fields[state]}", markup=False))
    # The bar redirects what is printed meanwhile to the terminal, so it must be cleaned in front of that.
    with Progress(*columns, console=console, transient=True, expand=True) as bar, cleaned():
        yield Meter(label, total, unit, bar, PLAIN_EVERY, done, bound)


@contextmanager
def _repeating(meter: Meter) -> Iterator[None]:
    """Print a line of a meter whenever it has printed none for a minute.

    Episodes that are sampled together may all end after many minutes, in which nothing calls ``advance``. The thread
    waits for the end of the work, and only reads what the meter counts.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(max(0.01, meter.last + INNER_EVERY - time.monotonic())):
            if time.monotonic() - meter.last >= INNER_EVERY:
                meter.last = time.monotonic()
                meter.line()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
