"""The command ``view``: runs in the browser."""

from __future__ import annotations

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
) -> None:
    """Write pages with every episode of runs: groups, turns, credit. They open from disk.

    With several runs, the first page is a table of them, and any two can be compared.
    """
    from gagpo.eval.viewer.export import export
    from gagpo.eval.viewer.index import runs_in

    found, problems = runs_in(runs)
    page = export(found, out or runs[0] / "view", problems)
    say(f"open {page}")
    if opened:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
