"""The commands ``serve`` and ``new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, Kwargs, print_json, say, values


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(serve)
    app.command("new")(new)


def serve(
    env: Annotated[str, typer.Argument(help="Environment id, e.g. gagpo/ALFWorld-v0 or module:Name-v0.")],
    kwargs: Kwargs = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 to be reached from elsewhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    browser: Annotated[
        bool, typer.Option("--browser", help="Serve the WebShop as web pages for people, instead of over OpenEnv.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at once.")] = 64,
    admissible: Annotated[bool, typer.Option(help="Send the admissible actions with each observation.")] = False,
    session_minutes: Annotated[float, typer.Option(help="How long a session may last.")] = 60.0,
    idle_minutes: Annotated[float, typer.Option(help="After which an unused session ends.")] = 10.0,
    package: Annotated[Path | None, typer.Option(help="Write the folder for `openenv push` instead.")] = None,
) -> None:
    """Serve an environment over OpenEnv, for any trainer that plays such servers."""
    if browser:
        from gagpo.envs.webshop.web.site import serve_pages

        serve_pages(env, values(kwargs), host=host, port=port)
        return
    from gagpo.interop.scaffold import write_package
    from gagpo.interop.serve import serve as run

    if package is not None:
        say("\n".join(map(str, write_package(env, values(kwargs), package))))
        return
    run(
        env,
        values(kwargs),
        host=host,
        port=port,
        workers=workers,
        max_sessions=sessions,
        admissible=admissible,
        session_seconds=60 * session_minutes,
        idle_seconds=60 * idle_minutes,
    )


def new(
    name: Annotated[str, typer.Argument(help="Of the module: small letters, digits and _.")],
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path(),
    package: Annotated[
        bool, typer.Option("--package", help="A folder to install and to publish: pyproject, README, test, workflow.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an environment of your own to start from: a file, a config and a test, ready to train."""
    from gagpo.interop.scaffold import class_name, new_environment, new_package

    env = f"{class_name(name)}-v0"
    made = new_package(name, folder) if package else new_environment(name, folder)
    say("\n".join(map(str, made)))
    if package:
        say(f"next: cd {made[0].parent}; pip install -e .; gagpo check {env}; gagpo sft {name}.yaml")
    else:
        say(f"next: gagpo check {name}:{env}; gagpo sft {made[1]}; gagpo train {made[1]}")
    if as_json:
        print_json({"files": [str(path) for path in made]})
