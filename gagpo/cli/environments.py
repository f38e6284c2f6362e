"""The commands about environments: ``check``, those that serve environments, and ``new``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gagpo.cli import servers
from gagpo.cli.options import Json, Kwargs, print_json, print_table, say, values


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(check)
    servers.add_to(app)
    app.command()(new)


def check(
    env: Annotated[
        str,
        typer.Argument(
            help="Environment id (gagpo/ALFWorld-v0, module:Name-v0), the URL of an OpenEnv server, or a config, whose "
            "environments are checked."
        ),
    ],
    kwargs: Kwargs = None,
    episodes: Annotated[int, typer.Option(min=1, help="Tasks of each check.")] = 8,
    as_json: Json = False,
) -> None:
    """Check an environment: splits, exact resets, determinism, expert, garbage actions and more."""
    from gagpo.envs.check.check import check as run
    from gagpo.envs.check.check import table

    records = {}
    for name, (env_id, arguments) in _environments(env, values(kwargs)).items():
        findings = run(env_id, arguments, episodes=episodes)
        if name:
            say(f"{name}: {env_id}")
        print_table(table(findings))
        failed = [finding.name for finding in findings if not finding.ok]
        warnings = [finding.name for finding in findings if finding.warning]
        for outcome, names in (("warning", warnings), ("failed", failed)):
            if names:
                say(f"{outcome}: {', '.join(names)}")
        records[name] = {"ok": not failed, "warnings": warnings, "findings": [vars(finding) for finding in findings]}
    if as_json:
        print_json(records.get("", records))
    if not all(record["ok"] for record in records.values()):
        raise typer.Exit(1)


def _environments(env: str, kwargs: dict[str, object]) -> dict[str, tuple[str, dict[str, object]]]:
    """The id and arguments of each environment to check, by its name in a config; ``""`` for a single one."""
    from gagpo.settings import load, shipped_configs

    if not env.endswith((".yaml", ".yml")) and env not in shipped_configs():
        return {"": (env, kwargs)}
    rows = load(env).all_environments
    return {row.name: (row.environment.id, {**row.environment.kwargs, **kwargs}) for row in rows}


def new(
    name: Annotated[str, typer.Argument(help="NAME.yaml for a config, or the module name of an environment.")],
    like: Annotated[str, typer.Option(help="Shipped config to copy.")] = "alfworld-quickstart",
    folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write a config, or an example environment with a module, a config and a test, to start from."""
    from gagpo.interop.scaffold import class_name, new_config, new_environment

    if name.endswith((".yaml", ".yml")):
        copy = new_config(folder / name, like)
        say(f"{copy}\nnext: gagpo train {quote(str(copy))}")
        if as_json:
            print_json({"files": [str(copy)]})
        return
    env = f"{class_name(name)}-v0"
    files = new_environment(name, folder)
    say("\n".join(map(str, files)))
    there = "" if folder.resolve() == Path.cwd() else f"cd {quote(str(folder))}; "  # where Python finds the module
    say(f"next: {there}gagpo check {name}:{env}; gagpo sft {files[1].name}; gagpo train {files[1].name}")
    if as_json:
        print_json({"files": [str(path) for path in files]})
