"""Commands that serve environments, one in each file; nothing else names them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import typer

from gagpo.cli.examples import EXAMPLES


def names() -> list[str]:
    """The names of the commands, which are those of their files."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def add_to(app: typer.Typer) -> None:
    """Add the commands to ``app``, and their examples to those of the others."""
    for name in names():
        module = import_module(f"{__name__}.{name}")
        EXAMPLES[name] = module.EXAMPLES
        module.add_to(app)


def advice(env: str) -> str:
    """The command that serves the environment ``env``; '' where there is none."""
    return next((f"`gagpo {name} {env}` serves it" for name in names()), "")
