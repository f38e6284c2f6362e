"""The command ``export``: a run's model, or the episodes of an evaluation, in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, print_json, say


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(export)


def export(
    source: Annotated[str, typer.Argument(help="A run (RUN, RUN@ITERATION), or a file of episodes or a journal.")],
    out: Annotated[Path, typer.Argument(help="The folder or file to make.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="Of a run: the adapter alone, as peft reads it.")] = False,
    form: Annotated[str, typer.Option("--to", help="Of episodes: jsonl, inspect or hf.")] = "jsonl",
    as_json: Json = False,
) -> None:
    """Write a run's model as a Hugging Face folder with a model card, or episodes in another suite's format."""
    from gagpo.training import export as models

    if models.names_a_run(source):
        made = models.export(source, out, adapter)
        say(f"{'adapter' if adapter else 'model'} folder: {made}")
        if as_json:
            print_json({"folder": str(made)})
        return
    from gagpo.interop.export import export as write

    count = write(Path(source), form, out)
    say(f"{count} episodes: {out}")
    if as_json:
        print_json({"episodes": count, "path": str(out)})
