"""The command ``profile``: what an iteration costs, part by part."""

from __future__ import annotations

from typing import Annotated

import typer

from gagpo.cli.options import Config, Json, Overrides, print_json, print_table, say


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(profile)


def profile(
    config: Config,
    overrides: Overrides = None,
    iterations: Annotated[int, typer.Option(min=1, help="Measured and averaged, after the first.")] = 3,
    as_json: Json = False,
) -> None:
    """Train for a few iterations and say where their time goes; nothing is kept."""
    from gagpo.settings import load

    settings = load(config, overrides or [])
    from gagpo.planning import profile as profiling

    shares = profiling.profile(settings, iterations)
    rollout = settings.rollout
    played = f"{rollout.tasks} x {rollout.samples} episodes"
    print_table(shares.table(f"{config}: {played}, mean of {iterations} iterations"))
    last = shares.metrics[-1]
    say(
        f"{last['tokens_per_second']:,.0f} response tokens a second; of the rows' tokens the update read "
        f"{last.get('train_tokens_read', 0.0):.0%}"
    )
    if as_json:
        print_json(shares.record())
