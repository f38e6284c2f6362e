"""The commands that lead elsewhere: serving worlds, models behind servers, worlds of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, Kwargs, print_table, say, values


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(serve)
    app.command("new")(new)
    app.command("list")(list_everything)


def serve(
    env: Annotated[str, typer.Argument(help="Environment id, e.g. gagpo/ALFWorld-v0 or module:Name-v0.")],
    kwargs: Kwargs = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 to be reached from elsewhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=0, help="Environment processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at once.")] = 64,
    admissible: Annotated[bool, typer.Option(help="Send the admissible actions with each observation.")] = False,
    session_minutes: Annotated[float, typer.Option(help="How long a session may last.")] = 60.0,
    idle_minutes: Annotated[float, typer.Option(help="After which an unused session ends.")] = 10.0,
    package: Annotated[Path | None, typer.Option(help="Write the folder for `openenv push` instead.")] = None,
) -> None:
    """Serve an environment over OpenEnv, for any trainer that plays such servers."""
    from gagpo.interop import serve as serving

    if package is not None:
        say("\n".join(map(str, serving.write_package(env, values(kwargs), package))))
        return
    serving.serve(
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
) -> None:
    """Begin a world of one's own: a file, a config and a test, ready to train."""
    from gagpo.interop.worlds import new_world

    made = new_world(name, folder)
    say("\n".join(map(str, made)))
    world = f"{name}:{''.join(part.title() for part in name.split('_'))}-v0"
    say(f"next: gagpo check {world}; gagpo warm-start {made[1]}; gagpo train {made[1]}")


def list_everything(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="Folder of models.")] = Path("data/models"),
    as_json: Json = False,
) -> None:
    """What can be used here: environments, algorithms, engines, models and runs."""
    from gagpo.envs.tables import Table
    from gagpo.interop.worlds import everything

    listed = everything(runs, models)
    rows = [[one.kind, one.name, one.package, one.problem] for one in listed]
    print_table(Table(["kind", "name", "from", "problem"], rows, words=range(4)))
    if as_json:
        print(json.dumps([vars(one) for one in listed]))
