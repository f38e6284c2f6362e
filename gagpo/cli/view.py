"""The command ``view``: runs and episodes in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import say


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(view)


def view(
    paths: Annotated[
        list[Path], typer.Argument(help="Run folders, a folder of runs, or files: episodes, results, journals.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; RUN/view or FILE-view by default.")
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Update the pages until the runs have finished.")] = False,
) -> None:
    """Write pages with every episode of runs or files: groups, turns, credit. They open from disk.

    With several runs, the first page is a table of them, and any two can be compared.
    """
    first = paths[0]
    output = out or (first.with_name(f"{first.stem}-view") if first.is_file() else first / "view")
    if live:
        _follow(paths, output, opened)
        return
    from gagpo.eval.viewer.export import export
    from gagpo.eval.viewer.opening import runs_in

    runs, problems = runs_in(paths)
    page = export(runs, output, problems)
    say(f"wrote {page.parent}; open {page}")
    if opened:
        _open(page)


def _follow(paths: list[Path], output: Path, opened: bool) -> None:
    """Update the pages until the runs have finished, nothing has changed for an hour, or Ctrl-C."""
    from gagpo.eval.viewer.updates import follow

    def begin(page: Path) -> None:
        say(f"writing {page.parent} while the run trains; open {page}; Ctrl-C ends it")
        if opened:
            _open(page)

    follow(paths, output, begin, say)


def _open(page: Path) -> None:
    import webbrowser

    webbrowser.open(page.resolve().as_uri())
