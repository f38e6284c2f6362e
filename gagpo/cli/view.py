"""Looking at runs: the viewer, and a run in the terminal while it goes on."""

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
    """Hang the commands of this file under ``app``."""
    app.command()(view)
    app.command()(watch)


def view(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or a folder of runs; shown together.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; RUN/view by default.")] = None,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = False,
) -> None:
    """Write pages to look at every episode of runs: groups, turns, credit. They open from disk.

    Of several runs, or of a folder of runs, the first page is a table of them all, and any two stand side by side.
    """
    from gagpo.eval.health import sentences
    from gagpo.eval.recredit import for_run
    from gagpo.eval.viewer.experiments import runs_in
    from gagpo.eval.viewer.export import export

    found, problems = runs_in(runs)
    page = export(found, out or runs[0] / "view", for_run, lambda run: sentences(run.metrics), problems)
    say(f"open {page}")
    if opened:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder; the run may go on.")],
    web: Annotated[bool, typer.Option("--web", help="Serve the viewer on this machine, following the run.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --web; 0 for any free one.")] = 0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option(help="Show it once and end.")] = False,
) -> None:
    """Show a run while it goes on: curves, health in plain words, time, last episodes."""
    from gagpo.eval.health import sentences
    from gagpo.eval.recredit import for_run
    from gagpo.eval.viewer.export import Exporter
    from gagpo.eval.viewer.serve import serving
    from gagpo.eval.watch import watch as show
    from gagpo.runs.reading import BadResult

    if not run.is_dir():
        raise BadResult(f"{run}: not a run folder (no such folder)")
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        if web:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gagpo-watch-")))
            exporter = Exporter([run], folder, for_run, lambda one: sentences(one.metrics), live=True)
            say(f"open {stack.enter_context(serving(exporter, port))}")
        show(run, sentences, every=every, once=once)


@contextmanager
def watched(run: Path, wanted: bool) -> Iterator[None]:
    """Show ``run`` in the terminal while the body trains it, and its last state when the body is over."""
    if not wanted:
        yield
        return
    from gagpo.eval.health import sentences
    from gagpo.eval.watch import watch as show
    from gagpo.runs.reading import BadResult

    over = threading.Event()

    def look() -> None:
        while not (run / "config.yaml").is_file() and not over.wait(0.2):
            pass  # the folder is made when everything else was found to be right
        with suppress(BadResult):  # nothing was logged: the trainer's own error says why
            show(run, sentences, every=1.0, done=over.is_set)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
