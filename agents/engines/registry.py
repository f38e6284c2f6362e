"""Engines by name: those of this project, those that installed packages offer, and any ``module:Name``.

An engine is a callable ``factory(model, tokenizer, max_length=None, **options)`` that gives an
:class:`gagpo.agents.engines.base.Engine`. Another package offers one in one file and one line of its metadata:

    [project.entry-points."gagpo.engines"]
    mine = "my_package.my_engine:MyEngine"

Nothing is imported until an engine is made, so that an engine whose library is missing hurts nobody else.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from importlib.metadata import entry_points

from gagpo.agents.engines.base import Engine
from gagpo.envs.errors import InvalidArgument

GROUP = "gagpo.engines"

BUILT_IN = {
    "transformers": "gagpo.agents.engines.general:transformers_engine",
    "vllm": "gagpo.agents.engines.vllm:VLLMEngine",
    "vllm-server": "gagpo.agents.engines.remote.engine:VLLMServerEngine",
}

Factory = Callable[..., Engine]


def known() -> dict[str, str]:
    """Every engine that has a name, with where it is; what this project has cannot be replaced."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN


def place_of(name: str) -> str:
    """``module:Name`` of an engine, without importing it; :class:`InvalidArgument` names the nearest known one."""
    places = known()
    if name in places:
        return places[name]
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return name
    near = difflib.get_close_matches(name, places, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidArgument(f"unknown engine {name!r}; known: {', '.join(sorted(places))}, or module:Name{hint}")


def find(name: str) -> Factory:
    """Import the engine called ``name``; :class:`InvalidArgument` says which part of its place is not there."""
    place = place_of(name)
    module, _, attribute = place.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise  # the module is there, and misses one of its own
        raise InvalidArgument(f"engine {name!r}: there is no module {module!r} to import") from None
    try:
        factory: Factory = getattr(found, attribute)
    except AttributeError:
        raise InvalidArgument(f"engine {name!r}: module {module!r} has no {attribute!r}") from None
    return factory
