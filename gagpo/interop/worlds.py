"""A world of one's own: the files to begin with (``gagpo new``), and how a package offers it (``gagpo list``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import gymnasium

import gagpo.envs  # noqa: F401 (registers the suite's own)
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.lookup import ENVIRONMENTS

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {"world.py.txt": "{name}.py", "world.yaml": "{name}.yaml", "test_world.py.txt": "test_{name}.py"}


def new_world(name: str, folder: Path = Path()) -> list[Path]:
    """Write ``NAME.py``, ``NAME.yaml`` and ``test_NAME.py``: a world that passes the checker and can be trained in.

    Raises InvalidArgument for a name that is no module's or files that exist.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"a world's name is a module's: small letters, digits and _, got {name!r}")
    words = {"my_world": name, "MyWorld": "".join(part.title() for part in name.split("_"))}
    places = {source: folder / target.format(name=name) for source, target in _FILES.items()}
    for place in places.values():
        if place.exists():
            raise InvalidArgument(f"{place} exists: choose another name or folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source, place in places.items():
        text = (_TEMPLATES / source).read_text(encoding="utf-8")
        for word, own in words.items():
            text = text.replace(word, own)
        place.write_text(text, encoding="utf-8")
    return list(places.values())


@dataclass(frozen=True)
class Listed:
    """One thing that can be used. package: where it comes from; problem: why it cannot be used, if so."""

    kind: str
    name: str
    package: str = "gagpo"
    problem: str = ""


def environments() -> list[Listed]:
    """The suite's environments, and those that installed packages offer as entry points of ``gagpo.environments``.

    An entry point is named by the environment's id, without its module, and names the module that registers it:
    ``"Guess-v0" = "guess"``. A package that breaks is listed with its problem and disturbs no other.
    """
    found = [Listed("environment", name) for name in gymnasium.registry if name.startswith("gagpo/")]
    for point in ENVIRONMENTS.offered().values():
        package = point.dist.name if point.dist else point.module
        found.append(Listed("environment", f"{point.module}:{point.name}", package, _problem(point.module, point.name)))
    return sorted(found, key=lambda one: (one.package != "gagpo", one.name))


def _problem(module: str, name: str) -> str:
    try:
        import_module(module)
    except Exception as error:  # somebody else's code may raise anything
        return f"{type(error).__name__}: {error}"[:200]
    return "" if name in gymnasium.registry else f"{module} registers no {name}"


def everything(runs: Path = Path("runs"), models: Path = Path("data/models")) -> list[Listed]:
    """Environments, algorithms, engines, and the models and runs at hand."""
    from importlib.util import find_spec

    from gagpo.algorithms import PRESETS

    listed = environments()
    listed += [Listed("algorithm", name) for name in sorted(PRESETS)]
    for engine, package in (("transformers", "transformers"), ("vllm", "vllm"), ("openai:MODEL", "openai")):
        missing = "" if find_spec(package) else f"the package {package} is not installed"
        listed.append(Listed("engine", engine, package, missing))
    for kind, folder, mark in (("model", models, "config.json"), ("run", runs, "config.yaml")):
        listed += [Listed(kind, str(path.parent), "") for path in sorted(folder.glob(f"*/{mark}"))]
    return listed
