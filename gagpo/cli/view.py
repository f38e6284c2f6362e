"""The command ``view``: runs in the browser, and one run in the terminal while it trains."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import say


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(view)


def view(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or a folder of runs; shown together.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; RUN/view by default.")] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show one run in the terminal while it trains.")] = False,
    web: Annotated[bool, typer.Option("--web", help="With --follow: also serve the pages on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --web; 0 for any free one.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="With --follow: show it once and end.")] = False,
) -> None:
    """Write pages that show every episode of runs: groups, turns, credit. They open from disk.

    With several runs, or a folder of runs, the first page is a table of them, and any two can be shown side by side.
    """
    if follow:
        _follow(runs, web, port, once)
        return
    from gagpo.base.errors import InvalidArgument
    from gagpo.eval.viewer.experiments import runs_in
    from gagpo.eval.viewer.export import export

    if web or once:
        raise InvalidArgument("--web and --once need --follow")
    found, problems = runs_in(runs)
    page = export(found, out or runs[0] / "view", problems)
    say(f"open {page}")
    if opened:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _follow(runs: list[Path], web: bool, port: int, once: bool) -> None:
    from gagpo.base.errors import InvalidArgument
    from gagpo.eval.viewer.export import Exporter
    from gagpo.eval.viewer.serve import serving
    from gagpo.eval.watch import watch
    from gagpo.runs.reading import BadResult

    if len(runs) > 1:
        raise InvalidArgument(f"--follow shows one run, got {len(runs)}")
    (run,) = runs
    if not run.is_dir():
        raise BadResult(f"{run}: not a run folder (no such folder)")
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        if web:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gagpo-view-")))
            say(f"open {stack.enter_context(serving(Exporter([run], folder, live=True), port))}")
        watch(run, once=once)


@contextmanager
def watched(run: Path, wanted: bool) -> Iterator[None]:
    """Show ``run`` in the terminal while the body trains it, and its last state at the end."""
    if not wanted:
        yield
        return
    from gagpo.eval.watch import watch
    from gagpo.runs.reading import BadResult

    over = threading.Event()

    def look() -> None:
        while not (run / "config.yaml").is_file() and not over.wait(0.2):
            pass  # the folder is made once everything else has been checked
        with suppress(BadResult):  # nothing was logged: the trainer's own error says why
            watch(run, every=1.0, done=over.is_set)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
