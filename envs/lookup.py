"""Finding environments by id, here and in other processes.

An id of the form ``module:Name-v0`` names a module to import first, and that module may lie in the working directory.
The working directory is looked at last: no file there can take the place of this project or of a library. An installed
package offers ids, without their module, as entry points of ``gagpo.environments``: ``"Guess-v0" = "guess"``.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.registry import Registry

ENVIRONMENTS: Registry[EnvSpec] = Registry("environment", "gagpo.environments", {})
"""What installed packages offer: the module that registers an id. Everything registered is in gymnasium's own."""


class UnknownEnvironment(GagpoError, ValueError):
    """An id under which no environment is registered."""


def find_spec(env_id: str) -> EnvSpec:
    """The registered ``EnvSpec`` of ``env_id``, which may name a module to import first (``"module:Name-v0"``).

    Raises :class:`UnknownEnvironment` with advice when there is no such module or no such id.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            _import(module)
        return gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise UnknownEnvironment(f"environment {env_id!r}: {error}; is its folder on PYTHONPATH?") from None
    except gymnasium.error.Error as error:
        known = ", ".join(sorted(name for name in gymnasium.registry if name.startswith("gagpo/")))
        advice = f"known here: {known}, and module:Name-v0 for one of your own"
        raise UnknownEnvironment(f"environment {env_id!r}: {' '.join(str(error).split())[:200]} ({advice})") from None


def playing(env_id: str, kwargs: Mapping[str, Any], split: str | None) -> dict[str, Any]:
    """``kwargs`` with ``split`` (None: the last one) as the environment's own: no other's tasks are looked for then.

    An environment that has no such split, or is told one already, is left as it is.
    """
    spec = find_spec(env_id)
    maker = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    splits = getattr(maker, "splits", ())
    split = split or (splits[-1] if splits else None)
    takes_one = split in splits and "split" in inspect.signature(maker).parameters
    return {"split": split, **kwargs} if takes_one else dict(kwargs)


def module_path() -> list[str]:
    """The folders in which another process finds the modules of this one, in order, as absolute paths.

    An empty entry stands for the working directory: Python puts it first for ``-c`` and standard input. It goes last.
    """
    named = [os.path.abspath(place) for place in sys.path if place]
    return named if len(named) == len(sys.path) else [*named, os.getcwd()]


def portable(spec: EnvSpec) -> str:
    """``spec`` as JSON that another process can build from; ValueError when its class cannot be found there."""
    spec = copy.deepcopy(spec)
    if callable(spec.entry_point):
        module = getattr(spec.entry_point, "__module__", "__main__")
        name = getattr(spec.entry_point, "__qualname__", "<")
        if module == "__main__" or "<" in name or "." in name:
            raise InvalidArgument(
                f"environment {spec.id!r} is made by {name} of {module}, which other processes cannot import; "
                "put it at the top level of a module, or use workers=0"
            )
        spec.entry_point = f"{module}:{name}"
    spec.vector_entry_point = None
    return spec.to_json()


def _import(module: str) -> None:
    """Import ``module``, from the working directory when it is found nowhere else; that stays on the path."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        missing_itself = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not missing_itself or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        importlib.import_module(module)
