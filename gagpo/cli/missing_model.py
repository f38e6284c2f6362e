"""The model that a run starts from, made by SFT where it does not exist."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import typer

from gagpo.cli.options import say


def make_missing_model(config: str, changes: list[str], quiet: bool) -> None:
    """Run SFT, in a process of its own, for a config that has a section ``sft`` and names a folder without a model."""
    from gagpo.base.interpreter import module_command
    from gagpo.base.rank import started_as_rank
    from gagpo.distributed.environment import PARENT
    from gagpo.model.starters import is_starter
    from gagpo.settings import load

    settings = load(config, changes)
    exists = is_starter(settings.model) or (Path(settings.model) / "config.json").exists()
    if settings.sft is None or exists or started_as_rank():
        return
    say(f"{settings.model} does not exist: training it on demonstrations first, as `gagpo sft` does")
    command = ["sft", config, *changes, *(["-q"] if quiet else [])]
    child = {**os.environ, PARENT: str(os.getpid())}  # this process tells how to continue
    status = subprocess.run(module_command("gagpo", *command), env=child).returncode
    if status:
        raise typer.Exit(status)
