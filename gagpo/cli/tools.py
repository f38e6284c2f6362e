"""The command ``check``."""

from __future__ import annotations

from typing import Annotated

import typer

from gagpo.cli.options import Json, Kwargs, print_json, print_table, values


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(check)


def check(
    env: Annotated[
        str,
        typer.Argument(help="Environment id, e.g. gagpo/ALFWorld-v0 or module:Name-v0, or an OpenEnv server's URL."),
    ],
    kwargs: Kwargs = None,
    episodes: Annotated[int, typer.Option(min=1, help="Tasks played in each check.")] = 8,
    as_json: Json = False,
) -> None:
    """Prove an environment: splits, exact resets, determinism, expert, garbage actions, and more."""
    from gagpo.envs.check.check import check as run
    from gagpo.envs.check.check import table
    from gagpo.envs.lookup import is_address

    arguments = values(kwargs)
    if is_address(env):
        from gagpo.envs.remote.env import RemoteEnv
        from gagpo.envs.remote.server import server_at

        server = server_at(env, arguments)
        findings = run(lambda: RemoteEnv(server), episodes=episodes)
    else:
        findings = run(env, arguments, episodes=episodes)
    print_table(table(findings))
    broken = [finding.name for finding in findings if not finding.ok]
    if as_json:
        print_json({"ok": not broken, "findings": [vars(finding) for finding in findings]})
    if broken:
        raise typer.Exit(1)
