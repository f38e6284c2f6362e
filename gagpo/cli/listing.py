"""The commands ``list`` and ``configs``."""

from __future__ import annotations

import sys
from dataclasses import astuple, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, print_json, print_table, say


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command("list")(list_everything)
    app.command()(configs)


def list_everything(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="Folder of models.")] = Path("data/models"),
    as_json: Json = False,
) -> None:
    """List available environments, algorithms, engines, models and runs. In a pipe, columns are separated by tabs."""
    from gagpo.base.tables import Table

    listed = everything(runs, models)
    rows = [astuple(one) for one in listed]
    if as_json:
        print_json([vars(one) for one in listed])
    elif sys.stdout.isatty():
        print_table(Table(["kind", "name", "offers", "from", "problem"], rows, words=range(5)))
    else:
        say(*("\t".join(" ".join(cell.split()) for cell in row) for row in rows))


@dataclass(frozen=True)
class Listed:
    """One row of the list.

    kind: environment, algorithm, curriculum, engine, model or run.
    offers: the actions of an environment, or the results of a model.
    problem: why it cannot be used; empty if it can.
    """

    kind: str
    name: str
    offers: str = ""
    package: str = "gagpo"
    problem: str = ""


def environments() -> list[Listed]:
    """The suite's environments, and those of entry points in the group ``gagpo.environments``.

    An entry point maps an id to the module that registers it: ``"Guess-v0" = "guess"``. A package that fails to import
    is listed with its problem.
    """
    import gymnasium

    import gagpo.envs  # noqa: F401 (registers the suite's own)
    from gagpo.envs.lookup import ENVIRONMENTS

    own = [name for name in gymnasium.registry if name.startswith("gagpo/")]
    found = [Listed("environment", name, _offers(name)) for name in own]
    for point in ENVIRONMENTS.offered().values():
        package = point.dist.name if point.dist else point.module
        problem = _problem(point.module, point.name)
        found.append(Listed("environment", point.name, "" if problem else _offers(point.name), package, problem))
    return sorted(found, key=lambda one: (one.package != "gagpo", one.name))


def _offers(name: str) -> str:
    """The kind of actions of an environment."""
    from gagpo.envs.lookup import maker
    from gagpo.envs.tools import tools_of
    from gagpo.envs.tools.env import ToolEnv

    try:
        made_by = maker(name)
    except ImportError:
        return ""
    if isinstance(made_by, type) and issubclass(made_by, ToolEnv):
        return f"tools: {', '.join(tool.name for tool in tools_of(made_by)) or 'those of its server'}"
    return "text: plain, tags, whole; tools: act(command)"


def _problem(module: str, name: str) -> str:
    import gymnasium

    try:
        import_module(module)
    except Exception as error:  # another package's code may raise anything
        return f"{type(error).__name__}: {error}"[:200]
    return "" if name in gymnasium.registry else f"{module} registers no {name}"


def everything(runs: Path = Path("runs"), models: Path = Path("data/models")) -> list[Listed]:
    """Environments, algorithms, curricula, engines, shipped models, local models and runs."""
    from gagpo.agents.engines.registry import SERVERS
    from gagpo.algorithms import PRESETS
    from gagpo.controllers.curriculum import CURRICULA

    listed = environments()
    listed += [Listed("algorithm", name) for name in sorted(PRESETS)]
    listed += [Listed("curriculum", name) for name in CURRICULA.ours]
    for name, point in CURRICULA.offered().items():
        listed.append(Listed("curriculum", name, package=point.dist.name if point.dist else point.module))
    for engine, package in (("transformers", "transformers"), ("vllm", "vllm"), ("openai:MODEL", "openai")):
        missing = "" if find_spec(package) else f"the package {package} is not installed"
        listed.append(Listed("engine", engine, package=package, problem=missing))
    listed += [Listed("engine", engine) for engine in SERVERS]
    listed += _starters()
    for kind, folder, mark in (("model", models, "config.json"), ("run", runs, "config.yaml")):
        listed += [Listed(kind, str(path.parent), package="") for path in sorted(folder.glob(f"*/{mark}"))]
    return listed


def _starters() -> list[Listed]:
    """The shipped models with size and results."""
    from gagpo.agents import starters
    from gagpo.eval.statistics import Interval
    from gagpo.eval.summary import with_interval

    found = []
    for one in map(starters.find, starters.names()):
        rates = [
            f"{name} {with_interval(Interval(**result['success']))} %"
            for name, result in one.manifest["results"].items()
        ]
        size = f"{one.manifest['parameters'] / 1e6:.2f} M parameters, {one.size / 2**20:.1f} MiB"
        found.append(Listed("model", starters.PREFIX + one.name, "; ".join([size, *rates])))
    return found


def configs(
    name: Annotated[str | None, typer.Argument(help="Print this config.")] = None,
    as_json: Json = False,
) -> None:
    """List the configs that ship with the package, or print one."""
    from gagpo.settings import find_config, shipped_configs

    if name is not None:
        print(find_config(name).read_text(encoding="utf-8"), end="")
        return
    from gagpo.base.tables import facts, text_width

    found = {config: _first_comment(path) for config, path in shipped_configs().items()}
    say(*facts(list(found.items()), text_width(most=200)))
    say("\n`gagpo train NAME` uses one; `gagpo configs NAME > mine.yaml` makes a copy to change.")
    if as_json:
        print_json(found)


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
