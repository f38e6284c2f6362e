"""The command ``list``."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gagpo.base.tables import ascii_only
from gagpo.cli.options import Json, first_comment, print_json, print_table, say


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command("list")(list_everything)


def list_everything(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="Folder of models.")] = Path("data/models"),
    as_json: Json = False,
) -> None:
    """List available configs, environments, algorithms, engines, models and runs. In a pipe, tabs separate columns."""
    from gagpo.base.tables import Table, text_width
    from gagpo.base.terminal import is_terminal

    items = everything(runs, models)
    rows = [astuple(item) for item in items]
    if as_json:
        print_json([vars(item) for item in items])
    elif is_terminal(sys.stdout) and text_width(TABLE) < TABLE:
        say(*narrow_lines(items, text_width(TABLE)))
    elif is_terminal(sys.stdout):
        print_table(Table(["kind", "name", "about", "from", "problem"], rows, words=range(5)))
    else:
        say(*("\t".join(" ".join(cell.split()) for cell in row) for row in rows))


TABLE = 100
"""Columns from which a terminal shows the list as a table; its cells would be a few letters wide on a narrower one."""


def narrow_lines(items: Sequence[CatalogEntry], width: int) -> list[str]:
    """The list under a heading for each kind, at most ``width`` columns wide; names without more to say in one row."""
    lines: list[str] = []
    for group, entries in itertools.groupby(items, key=lambda item: item.kind):
        lines += ["", f"{group}s"]
        plain: list[str] = []
        for item in entries:
            details = [
                item.about,
                f"from {item.package}" if item.package not in ("", "gagpo", item.name) else "",
                item.problem,
            ]
            details = [ascii_only(" ".join(detail.split())) for detail in details if detail]
            if not details:
                plain.append(ascii_only(item.name))
                continue
            lines += textwrap.wrap(ascii_only(item.name), width, initial_indent="  ", subsequent_indent="    ")
            for detail in details:
                lines += textwrap.wrap(detail, width, initial_indent="      ", subsequent_indent="      ")
        lines += textwrap.wrap(", ".join(plain), width, initial_indent="  ", subsequent_indent="  ")
    return lines[1:]


@dataclass(frozen=True)
class CatalogEntry:
    """One row of the list.

    kind: config, environment, algorithm, engine, model or run.
    about: what a config is for, or the results of a model.
    problem: why it cannot be used; empty if it can.
    """

    kind: str
    name: str
    about: str = ""
    package: str = "gagpo"
    problem: str = ""


def environments() -> list[CatalogEntry]:
    """The suite's environments, and those of entry points in the group ``gagpo.environments``.

    An entry point maps an id to the module that registers it: ``"Guess-v0" = "guess"``. A package that fails to import
    is listed with its problem.
    """
    import gymnasium

    import gagpo.envs  # noqa: F401 (registers the suite's own)
    from gagpo.envs.lookup import ENVIRONMENTS
    from gagpo.envs.offers import problem_of

    ids = [name for name in gymnasium.registry if name.startswith("gagpo/")]
    items = [CatalogEntry("environment", name, problem=problem_of(name)) for name in ids]
    for point in ENVIRONMENTS.offered().values():
        package = point.dist.name if point.dist else point.module
        problem = _problem(point.module, point.name)
        items.append(CatalogEntry("environment", point.name, package=package, problem=problem))
    return sorted(items, key=lambda item: (item.package != "gagpo", item.name))


def _problem(module: str, name: str) -> str:
    import gymnasium

    from gagpo.base.errors import is_termination

    try:
        import_module(module)
    except (Exception, SystemExit) as error:  # another package's code may raise anything
        if is_termination(error):
            raise
        return f"{type(error).__name__}: {error}"[:200]
    return "" if name in gymnasium.registry else f"{module} registers no {name}"


def everything(runs: Path = Path("runs"), models: Path = Path("data/models")) -> list[CatalogEntry]:
    """Shipped configs, environments, algorithms, engines, shipped models, local models and runs."""
    from gagpo.agents.engines.offers import engine_offers
    from gagpo.algorithms import PRESETS
    from gagpo.model import pretrained
    from gagpo.settings import shipped_configs

    items = [CatalogEntry("config", name, first_comment(path)) for name, path in shipped_configs().items()]
    items += environments()
    items += _families_of_environments()
    items += [CatalogEntry("algorithm", name) for name in sorted(PRESETS)]
    engines = {name: offer.package for offer in engine_offers() for name in offer.engines}
    for name, package in {"transformers": "transformers", **engines}.items():
        missing = "" if find_spec(package) else f"the package {package} is not installed"
        items.append(CatalogEntry("engine", name, package=package, problem=missing))
    missing = "" if os.environ.get("OPENAI_API_KEY") else "needs OPENAI_API_KEY, or --base-url for another server"
    items.append(CatalogEntry("model", "openai:MODEL", "behind a server, for gagpo eval", "openai", missing))
    items += _starters()
    items += [CatalogEntry("model", name, _origin(name), model.package) for name, model in pretrained.MODELS.items()]
    for group, folder, mark in (("model", models, "config.json"), ("run", runs, "config.yaml")):
        items += [CatalogEntry(group, str(path.parent), package="") for path in sorted(folder.glob(f"*/{mark}"))]
    return items


def _families_of_environments() -> list[CatalogEntry]:
    """How to name the environments of packages that are not registered one by one."""
    from gagpo.envs.offers import environment_offers

    return [
        CatalogEntry("environment", name, about, offer.package, offer.problem())
        for offer in environment_offers()
        for name, about in offer.examples.items()
    ]


def _origin(name: str) -> str:
    """How the pretrained model called ``name`` comes here, or where it lies."""
    from gagpo.model import pretrained

    return f"gagpo models get {name}" if pretrained.is_missing(name) else str(pretrained.place_of(name))


def _starters() -> list[CatalogEntry]:
    """The shipped models with size and results."""
    from gagpo.eval.statistics import Interval
    from gagpo.eval.units import PERCENT
    from gagpo.model import pretrained, starters

    items = []
    for starter in map(starters.find, starters.names()):
        rates = [
            f"{name} {PERCENT.interval(Interval(**result['success']))} %"
            for name, result in starter.manifest["results"].items()
        ]
        size = f"{starter.manifest['parameters'] / 1e6:.2f} M parameters, {starter.size / 2**20:.1f} MiB"
        if starter.base is not None:
            size += f", an adapter on {starter.base}"
            if pretrained.is_missing(starter.base):
                size += f" ({pretrained.MODELS[starter.base].megabytes} MB, fetched on first use)"
        items.append(CatalogEntry("model", starters.PREFIX + starter.name, "; ".join([size, *rates])))
    return items
