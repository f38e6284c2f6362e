"""Folders written from templates: a new environment, and an OpenEnv server to deploy."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.interop.games import Kwargs

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_OWN = ("gagpo", "agents", "envs", "eval", "tests")
_TEMPLATES = Path(__file__).parent / "templates"


def class_name(module: str) -> str:
    """The class name for a module name.

    >>> class_name("moon_base")
    'MoonBase'
    """
    return "".join(part.title() for part in module.split("_"))


def new_environment(name: str, folder: Path = Path()) -> list[Path]:
    """Write ``NAME.py``, ``NAME.yaml`` and ``test_NAME.py``: an environment that passes the checker and learns.

    Raises:
        InvalidArgument: the name is not a module name or is taken, or a file exists.
    """
    return _write("environment", folder, _own_words(name, folder))


def new_package(name: str, folder: Path = Path()) -> list[Path]:
    """Write the folder ``NAME``: the files of :func:`new_environment` as an installable package.

    Once installed, the environment's id needs no module. Raises as :func:`new_environment` does.
    """
    words, place = {"dot_github": ".github", **_own_words(name, folder)}, folder / name
    if place.exists():
        raise InvalidArgument(f"{place} exists: choose another name or folder")
    return [*new_environment(name, place), *_write("package", place, words)]


def _own_words(name: str, folder: Path) -> dict[str, str]:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"the name must be a module name: lowercase letters, digits and _, got {name!r}")
    if taken := _taken_by(name, folder):
        raise InvalidArgument(f"{name} is {taken}: choose another name, such as {name[:35]}_env")
    return {"my_env": name, "MyEnv": class_name(name)}


def _taken_by(name: str, folder: Path) -> str:
    """What a module of that name would conflict with; empty if it does not."""
    if keyword.iskeyword(name):
        return "a Python keyword"
    if name in sys.stdlib_module_names:
        return "a module of the standard library"
    if name in _OWN:
        return "a package of this project"
    found = importlib.util.find_spec(name)
    here = found is not None and found.origin is not None and Path(found.origin).parent == folder.resolve()
    return "an installed package" if found is not None and not here else ""


def require_openenv() -> None:
    """MissingPackage if OpenEnv is not installed."""
    try:
        import gagpo.interop.openenv  # noqa: F401
    except ImportError as error:
        raise MissingPackage(f"gagpo serve needs OpenEnv ({error}); install the extra openenv") from None


def write_package(env_id: str, kwargs: Kwargs | None, folder: Path) -> list[Path]:
    """Write a folder for ``openenv validate``, ``docker build`` and ``openenv push``; return its files.

    A user's environment (``module:Name-v0``) is copied into it if its module is a single file.

    Raises:
        InvalidArgument: ``folder`` is not empty.
        MissingPackage: OpenEnv is not installed.
    """
    require_openenv()
    from gagpo.interop.openenv import open_env, short_name

    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgument(f"{folder} is not empty: choose a new folder")
    env = open_env(env_id, kwargs, workers=0)
    env.pool.close()
    words = {
        "MY_NAME": short_name(env_id),
        "MY_ENVIRONMENT": env_id,
        "MY_ARGUMENTS": repr(dict(kwargs or {})),
        "MY_COUNTS": json.dumps({split: len(tasks) for split, tasks in env.tasks.items()}),
        "MY_HASHES": "\n".join(f"| {split} | `{tasks.hash}` |" for split, tasks in env.tasks.items()),
    }
    written = _write("openenv", folder, words)
    module, colon, _ = env_id.partition(":")
    spec = importlib.util.find_spec(module) if colon and not module.startswith("gagpo") else None
    if spec is not None and spec.origin and not spec.submodule_search_locations:
        written.append(Path(shutil.copy(spec.origin, folder / "server" / Path(spec.origin).name)))
    return written


def _write(template: str, folder: Path, words: Mapping[str, str]) -> list[Path]:
    """Write every file of a template without its ``.txt`` ending, with ``words`` replaced in names and texts."""

    def filled(text: str) -> str:
        for word, own in words.items():
            text = text.replace(word, own)
        return text

    root = _TEMPLATES / template
    places = {
        path: folder / filled(str(path.relative_to(root).with_suffix(""))) for path in sorted(root.rglob("*.txt"))
    }
    for place in places.values():
        if place.exists():
            raise InvalidArgument(f"{place} exists: choose another name or folder")
    for source, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(filled(source.read_text(encoding="utf-8")), encoding="utf-8")
    return list(places.values())
