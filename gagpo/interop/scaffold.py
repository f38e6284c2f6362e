"""New files to start from: a config copied from a shipped one, and an environment written from a template."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path

from gagpo.base.errors import InvalidArgument
from gagpo.settings import SettingsError, find_config

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_PACKAGES = ("gagpo", "agents", "envs", "eval", "tests")
_TEMPLATE = Path(__file__).parent / "templates" / "environment"


def class_name(module: str) -> str:
    """The class name for a module name.

    >>> class_name("moon_base")
    'MoonBase'
    """
    return "".join(word.title() for word in module.split("_"))


def new_config(path: Path, like: str) -> Path:
    """Copy the shipped config ``like`` to ``path``. Raises: SettingsError if it is unknown or ``path`` exists."""
    text = find_config(like).read_text(encoding="utf-8")
    if path.exists():
        raise SettingsError("exists already", where=path, advice="choose another name")
    path.write_text(text, encoding="utf-8")
    return path


def new_environment(name: str, folder: Path = Path()) -> list[Path]:
    """Write ``NAME.py``, ``NAME.yaml`` and ``test_NAME.py``: an environment that passes the checker and learns.

    Raises:
        InvalidArgument: the name is not a module name or is taken, or a file exists.
    """
    if not _NAME.fullmatch(name):
        near = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")
        advice = f", such as {near}" if _NAME.fullmatch(near) else ""
        raise InvalidArgument(
            f"the name must be a module name of lowercase letters, digits and _{advice} (got {name!r})", key="name"
        )
    conflict = _name_conflict(name, folder)
    if conflict:
        advice = f"choose another name, such as {name[:35]}_env"
        raise InvalidArgument(f"{name} is {conflict}", key="name", advice=advice)

    def filled(text: str) -> str:
        return text.replace("my_env", name).replace("MyEnv", class_name(name))

    targets = {path: folder / filled(path.stem) for path in sorted(_TEMPLATE.glob("*.txt"))}
    for target in targets.values():
        if target.exists():
            raise InvalidArgument("exists already", where=target, advice="choose another name or folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in targets.items():
        target.write_text(filled(source.read_text(encoding="utf-8")), encoding="utf-8")
    return list(targets.values())


def _name_conflict(name: str, folder: Path) -> str:
    """What a module of that name would conflict with; empty if it does not."""
    if keyword.iskeyword(name):
        return "a Python keyword"
    if name in sys.stdlib_module_names:
        return "a module of the standard library"
    if name in _PACKAGES:
        return "a package of this project"
    spec = importlib.util.find_spec(name)
    if spec is None:
        return ""
    in_folder = spec.origin is not None and Path(spec.origin).parent == folder.resolve()
    return "" if in_folder else "an installed package"
