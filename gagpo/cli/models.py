"""The command group ``models``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import say

models = typer.Typer(no_args_is_help=True, help="Fetch pretrained models.")


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.add_typer(models, name="models")


@models.callback()
def group() -> None:
    """Fetch pretrained models."""


@models.command()
def get(
    model: Annotated[str, typer.Argument(help="The name of a pretrained model, such as smollm2-135m, or a GGUF file.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder for the converted GGUF file. Default: data/models/FILE.")
    ] = None,
) -> None:
    """Download a pretrained model, or convert a GGUF file, to a folder that every command takes as a model."""
    from gagpo.agents import pretrained

    path = Path(model)
    if path.suffix == ".gguf":
        folder = pretrained.convert_file(path, to)
    elif to is not None:
        raise typer.BadParameter(f"{model} has a fixed folder; --to is for GGUF files", param_hint="--to")
    else:
        folder = pretrained.get(model)
    say(f"model: {folder}")
