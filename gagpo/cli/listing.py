"""The command that lists what can be used here, and which package offers it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Json, print_json, print_table


def add_to(app: typer.Typer) -> None:
    """Hang the command of this file under ``app``."""
    app.command("list")(list_everything)


def list_everything(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="Folder of models.")] = Path("data/models"),
    as_json: Json = False,
) -> None:
    """What can be used here: environments and how they are acted in, algorithms, engines, models and runs."""
    from gagpo.base.tables import Table

    listed = everything(runs, models)
    rows = [[one.kind, one.name, one.offers, one.package, one.problem] for one in listed]
    print_table(Table(["kind", "name", "offers", "from", "problem"], rows, words=range(5)))
    if as_json:
        print_json([vars(one) for one in listed])


@dataclass(frozen=True)
class Listed:
    """One thing that can be used. package: where it comes from; problem: why it cannot be used, if so.

    offers: of an environment, what an action is, and so which styles of ``context.style`` it is played in.
    """

    kind: str
    name: str
    package: str = "gagpo"
    problem: str = ""
    offers: str = ""


def environments() -> list[Listed]:
    """The suite's environments, and those that installed packages offer as entry points of ``gagpo.environments``.

    An entry point is named by the environment's id, without its module, and names the module that registers it:
    ``"Guess-v0" = "guess"``. A package that breaks is listed with its problem and disturbs no other.
    """
    import gymnasium

    import gagpo.envs  # noqa: F401 (registers the suite's own)
    from gagpo.envs.lookup import ENVIRONMENTS

    own = [name for name in gymnasium.registry if name.startswith("gagpo/")]
    found = [Listed("environment", name, offers=_offers(name)) for name in own]
    for point in ENVIRONMENTS.offered().values():
        package = point.dist.name if point.dist else point.module
        problem = _problem(point.module, point.name)
        found.append(Listed("environment", point.name, package, problem, "" if problem else _offers(point.name)))
    return sorted(found, key=lambda one: (one.package != "gagpo", one.name))


def _offers(name: str) -> str:
    """What an action is in this environment, as far as its class says it."""
    from gagpo.envs.lookup import maker
    from gagpo.envs.tools import tools_of
    from gagpo.envs.tools.world import ToolEnv

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
    except Exception as error:  # somebody else's code may raise anything
        return f"{type(error).__name__}: {error}"[:200]
    return "" if name in gymnasium.registry else f"{module} registers no {name}"


def everything(runs: Path = Path("runs"), models: Path = Path("data/models")) -> list[Listed]:
    """Environments, algorithms, curricula, engines, and the models and runs at hand."""
    from gagpo.agents.engines.registry import SERVERS
    from gagpo.algorithms import PRESETS
    from gagpo.controllers.curriculum import CURRICULA

    listed = environments()
    listed += [Listed("algorithm", name) for name in sorted(PRESETS)]
    listed += [Listed("curriculum", name) for name in CURRICULA.ours]
    for name, point in CURRICULA.offered().items():
        listed.append(Listed("curriculum", name, point.dist.name if point.dist else point.module))
    for engine, package in (("transformers", "transformers"), ("vllm", "vllm"), ("openai:MODEL", "openai")):
        missing = "" if find_spec(package) else f"the package {package} is not installed"
        listed.append(Listed("engine", engine, package, missing))
    listed += [Listed("engine", engine) for engine in SERVERS]
    for kind, folder, mark in (("model", models, "config.json"), ("run", runs, "config.yaml")):
        listed += [Listed(kind, str(path.parent), "") for path in sorted(folder.glob(f"*/{mark}"))]
    return listed
