"""The progress of a sweep: one live table in a terminal, lines in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from gagpo.base.tables import Table, duration
from gagpo.base.terminal import cleaned, is_terminal, raw
from gagpo.sweeps.status import RunStatus

LINE_SECONDS = 15.0  # between two lines about one run in a pipe
REFRESH_SECONDS = 1.0  # between two looks at the runs' metrics
MARGIN = 7  # lines of a terminal that the table leaves: its frame, its title, and the line that started it
ORDER = ("running", "failed", "stopped", "waiting", "finished")
"""States in the order of rows that stay when a terminal is too low for all."""

STYLES = {"running": "bold", "finished": "green", "failed": "red", "stopped": "yellow"}


class SweepDisplay:
    """Shows the runs of a sweep.

    say: prints a line.
    live: whether a terminal shows a table instead of lines.
    """

    def __init__(
        self,
        statuses: Sequence[RunStatus],
        say: Callable[[str], None],
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.statuses = statuses
        self.say = say
        self.live = not quiet and is_terminal(sys.stderr)
        self._quiet = quiet
        self._clock = clock
        self._begun = self._refreshed = clock()
        self._lines: dict[str, tuple[float, int]] = {}  # by run: when its last line was printed, and its iteration
        self._table: Live | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show a live table in the block; it stays on the screen with the final states."""
        if not self.live:
            yield
            return
        console = Console(file=raw(sys.stderr))
        # Drawn when this class says so: a thread that draws by itself could do so while a row changes.
        with Live(self.table(), console=console, auto_refresh=False) as self._table, cleaned():
            try:
                yield
            finally:
                self._draw()
                self._table = None

    def changed(self, status: RunStatus) -> None:
        """A run has changed its state."""
        if self._table is not None:
            self._draw()
        elif not self._quiet:
            self.say(f"{status.run.name}: {_news(status)}")
            self._lines[status.run.name] = (self._clock(), status.iteration)

    def watch(self) -> None:
        """Look at the runs, at most once a second."""
        now = self._clock()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        for status in self.statuses:
            if status.state == "running":
                status.refresh()
                if not self.live and not self._quiet:
                    self._line(status, now)
        if self._table is not None:
            self._draw()

    def table(self) -> Table:
        """One row per run; the runs that matter most if the terminal is too low for all."""
        rows_shown = max(3, shutil.get_terminal_size((80, 24)).lines - MARGIN)
        chosen = sorted(self.statuses, key=lambda status: ORDER.index(status.state))[:rows_shown]
        rows = [_row(status) for status in self.statuses if status in chosen]
        hidden = len(self.statuses) - len(rows)
        title = f"{counts(self.statuses)}, {duration(self._clock() - self._begun)}"
        title += f"; {hidden} not shown" if hidden else ""
        header = ["run", "state", "iteration", "success %", "reward", "time"]
        return Table(header, rows, title, words=(0, 1), styles=STYLES)

    def _draw(self) -> None:
        if self._table is not None:
            self._table.update(self.table(), refresh=True)

    def _line(self, status: RunStatus, now: float) -> None:
        """Print how far a run is, if it has come further and its last line is long enough ago."""
        printed, iteration = self._lines.get(status.run.name, (self._begun, 0))
        if status.iteration > iteration and now - printed >= LINE_SECONDS:
            self._lines[status.run.name] = (now, status.iteration)
            self.say(f"{status.run.name}: {_progress(status)}")


def counts(statuses: Sequence[RunStatus]) -> str:
    """``6 runs: 2 running, 3 waiting, 1 finished``."""
    count: Counter[str] = Counter(status.state for status in statuses)
    texts = [f"{count[state]} {state}" for state in ORDER if count[state]]
    return f"{len(statuses)} run{'s' * (len(statuses) != 1)}: {', '.join(texts)}"


def _row(status: RunStatus) -> list[str]:
    row = status.row or {}
    success = f"{100 * row['success_rate']:.1f}" if "success_rate" in row else ""
    reward = f"{row['reward_mean']:.3f}" if "reward_mean" in row else ""
    seconds = duration(status.seconds) if status.seconds else ""
    return [status.run.name, status.state, f"{status.iteration}/{status.iterations}", success, reward, seconds]


def _progress(status: RunStatus) -> str:
    row = status.row or {}
    text = f"iteration {status.iteration} of {status.iterations}"
    if "reward_mean" in row:
        text += f", reward {row['reward_mean']:.3f}"
    if "success_rate" in row:
        text += f", success {100 * row['success_rate']:.1f} %"
    return text


def _news(status: RunStatus) -> str:
    """What a change of state means."""
    if status.state == "running":
        return "started" if status.changes is None else f"resumed after iteration {status.iteration}"
    if status.state == "failed":
        return f"failed: {status.reason}; log: {status.log}"
    if status.state == "stopped":
        return f"stopped after iteration {status.iteration}"
    return f"finished in {duration(status.seconds)}, {_progress(status)}"
