"""The command ``view``: runs in the browser, or one run in the terminal."""

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
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or a folder of runs.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; RUN/view by default.")] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show one run in the terminal while it trains.")] = False,
    web: Annotated[bool, typer.Option("--web", help="With --follow: also serve the pages on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --web; 0 for any free one.")] = 0,
) -> None:
    """Write pages with every episode of runs: groups, turns, credit. They open from disk.

    With several runs, the first page is a table of them, and any two can be compared.
    """
    if follow:
        _follow(runs, web, port)
        return
    from gagpo.base.errors import InvalidArgument
    from gagpo.eval.viewer.export import export
    from gagpo.eval.viewer.index import runs_in

    if web:
        raise InvalidArgument("--web needs --follow")
    found, problems = runs_in(runs)
    page = export(found, out or runs[0] / "view", problems)
    say(f"open {page}")
    if opened:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _follow(runs: list[Path], web: bool, port: int) -> None:
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
        watch(run)


@contextmanager
def watched(run: Path, shown: bool) -> Iterator[None]:
    """Show ``run`` in the terminal while the body trains it."""
    if not shown:
        yield
        return
    from gagpo.eval.watch import watch
    from gagpo.runs.reading import BadResult

    over = threading.Event()

    def look() -> None:
        while not (run / "config.yaml").is_file() and not over.wait(0.2):
            pass  # the folder is made after the checks
        with suppress(BadResult):  # nothing was logged: the trainer reports why
            watch(run, every=1.0, done=over.is_set)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
