"""A run in the terminal while it trains: curves, health, time and the last episodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gagpo.base.tables import ascii_only
from gagpo.eval.episode_files import read_episode_file
from gagpo.eval.health import sentences
from gagpo.eval.runs import Run, load_run
from gagpo.eval.summary import number
from gagpo.runs.reading import BadResult
from gagpo.runs.register import Display, environments_of, of_environment, shown_in

BLOCKS = "▁▂▃▄▅▆▇█"
EVERY = 2.0  # seconds between two looks at a run


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """The last ``width`` values as one line of blocks; a value that is not finite is a gap.

    >>> sparkline([0, 1, 2, 4], 10)
    '▁▃▅█'
    """
    shown = list(values)[-width:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    bottom = min(finite) if low is None else low
    top = max(finite) if high is None else high
    span = top - bottom or 1.0
    return "".join(
        BLOCKS[min(7, max(0, round(7 * (value - bottom) / span)))] if math.isfinite(value) else " " for value in shown
    )


def screen(run: Run, width: int = 100, episodes: Sequence[str] = ()) -> RenderableType:
    """A run on a terminal of ``width`` columns."""
    rows = run.metrics
    last = rows[-1] if rows else {}
    head = Text(ascii_only(run.name), style="bold")
    head.append(f"  {run.algorithm}" if run.algorithm else "", style="cyan")
    if rows:
        head.append(f"  iteration {last['iteration']:.0f}", style="default")
    parts: list[RenderableType] = [head]
    for one in run.evaluations:
        rate = one.result.success
        parts.append(
            Text(f"{ascii_only(one.label)}: {100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]")
        )
    curves = Table.grid(padding=(0, 1))
    shown = shown_in(Display.WATCH)
    room = max(8, width - max(len(metric.caption) for metric in shown) - 11)
    for metric in shown:
        values = run.series(metric.name)[1]
        if values:  # only success is drawn on a fixed scale
            limits = (0.0, 1.0) if metric.name == "success_rate" else (None, None)
            line = Text(sparkline(values, room, *limits), style="cyan")
            curves.add_row(metric.caption, line, number(values[-1], metric.share))
            for env in environments_of(last, metric.name):
                values = run.series(of_environment(metric.name, env))[1]
                line = Text(sparkline(values, room, *limits), style="cyan")
                curves.add_row(f"  {env[:24]}", line, number(values[-1], metric.share))
    parts.append(curves)
    for sentence in sentences(rows):
        style = "red" if sentence.startswith("Act") else "yellow" if sentence.startswith("Look") else "green"
        parts.append(Text(f"* {sentence}", style=style))
    if seconds := run.seconds(last=10):
        parts.append(Text("time: " + ", ".join(f"{name} {spent:,.0f} s" for name, spent in seconds.items())))
    return Group(*parts, *map(Text, episodes))


def last_episodes(folder: Path, count: int = 3) -> list[str]:
    """The last episodes of the newest file, one line each."""
    files = sorted((folder / "episodes").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        return []
    try:
        episodes, _ = read_episode_file(files[-1])
    except BadResult:
        return []
    lines = []
    for one in episodes[-count:]:
        outcome = "success" if one.won else one.outcome
        actions = " > ".join(turn.action or "(none)" for turn in one.turns[-3:])
        lines.append(ascii_only(f"{outcome}, {len(one.turns)} turns: {one.task[:40]}: {actions}"))
    return lines


@contextmanager
def redrawn(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """A function that redraws the screen on a terminal, or prints it in a pipe."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, screen=False, auto_refresh=False) as live:
        yield lambda screen: live.update(screen, refresh=True)


def watch(folder: Path) -> None:
    """Show ``folder`` until interrupted, redrawing whenever the run has written.

    Raises:
        BadResult: there is no run. One that has not logged yet is waited for.
    """
    console = Console()
    before: tuple[int, ...] | None = None
    with redrawn(console) as show:
        while True:
            state = _state(folder)
            if state != before:
                before = state
                try:
                    show(screen(load_run(folder), console.width, last_episodes(folder)))
                except BadResult:
                    if not (folder / "config.yaml").is_file():
                        raise
                    show(Text(f"{folder}: started, no numbers yet"))
            time.sleep(EVERY)


def _state(folder: Path) -> tuple[int, ...]:
    """Modification times of what the run writes."""
    watched = [folder / "metrics.jsonl", folder / "evals", folder / "episodes"]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in watched)
