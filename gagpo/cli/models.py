"""The command ``models``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, print_json, say


class ModelAction(StrEnum):
    """What the command does."""

    GET = "get"


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(models)


def models(
    action: Annotated[
        ModelAction | None, typer.Argument(help="`get` a pretrained model, or convert a GGUF file.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Name of the model, such as smollm2-135m, or a GGUF file.")] = None,
    to: Annotated[Path | None, typer.Option(help="Folder of a converted file; data/models/FILE by default.")] = None,
    as_json: Json = False,
) -> None:
    """List the pretrained models that can be downloaded, or make one a folder that every command takes as a model."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.base.tables import facts, text_width
    from gagpo.model import pretrained

    available = pretrained.MODELS
    if action is None:
        about = {label: f"{model.hub}, {model.megabytes} MB, {model.licence}" for label, model in available.items()}
        say(*facts(list(about.items()), text_width(most=200)))
        if as_json:
            print_json(about)
        return
    if name is None:
        raise InvalidArgument(f"gagpo models get needs a name: {', '.join(available)}, or a GGUF file", key="name")
    path = Path(name)
    if path.suffix != ".gguf" and to is not None:
        raise InvalidArgument(
            "--to is for GGUF files", key="--to", advice=f"{name} is kept in {pretrained.place_of(name)}"
        )
    folder = pretrained.convert_file(path, to) if path.suffix == ".gguf" else pretrained.get(name)
    say(f"model: {folder}")
    if as_json:
        print_json({"folder": str(folder)})
