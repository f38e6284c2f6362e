"""The command that hands a trained model on: ``export-model``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, print_json, say


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command("export-model")(export_model)


def export_model(
    run: Annotated[Path, typer.Argument(help="A run folder (runs/X, runs/X@20, runs/X@best).")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="The adapter alone, as peft reads it.")] = False,
    as_json: Json = False,
) -> None:
    """Write a run's last model (or the one named) as a Hugging Face folder, adapter merged; or the adapter alone."""
    from gagpo.training import lora

    made = lora.export_adapter(run, folder) if adapter else lora.export_merged(run, folder)
    say(f"{'adapter' if adapter else 'model'} folder: {made}")
    if as_json:
        print_json({"folder": str(made)})
