"""The smaller commands: checks and benchmarks of environments, engines and credit."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
