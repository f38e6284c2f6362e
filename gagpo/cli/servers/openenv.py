"""The command ``openenv``."""

from __future__ import annotations

from typing import Annotated

import typer

from gagpo.cli.options import Kwargs, values

EXAMPLES = ("gagpo openenv gagpo/ALFWorld-v0 --port 8000", "gagpo openenv gagpo/WebShop-v0 -k products=200")


def add_to(app: typer.Typer) -> None:
    """Add the command of this file to ``app``."""
    app.command()(openenv)


def openenv(
    env: Annotated[str, typer.Argument(help="Environment id: gagpo/ALFWorld-v0, module:Name-v0.")],
    kwargs: Kwargs = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 accepts connections from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Limit of concurrent sessions.")] = 64,
    admissible: Annotated[bool, typer.Option(help="Send the admissible actions with each observation.")] = False,
) -> None:
    """Serve an environment over OpenEnv; `gagpo serve` serves a model."""
    try:
        from gagpo.interop.openenv import serve as run
    except ImportError as error:
        from gagpo.base.errors import MissingPackage

        raise MissingPackage(f"gagpo openenv needs OpenEnv ({error})", advice="install the extra openenv") from None
    run(env, values(kwargs), host=host, port=port, workers=workers, max_sessions=sessions, admissible=admissible)
