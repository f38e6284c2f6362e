"""Settings that a run takes from its model: what a warm start derived from the world and wrote beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gagpo.base.options import Options, explain
from gagpo.settings.core_schema import write_yaml
from gagpo.settings.errors import SettingsError
from gagpo.settings.run import RunSettings

Section = TypeVar("Section", bound=Options)
Value = str | float | int
Derived = dict[str, Value]
"""Values by dotted key, as in ``{"rollout.max_tokens": 6}``."""

OF_RUN = ("rollout.max_tokens", "optimizer.learning_rate")
"""What is derived of every run that begins with a warm start's model, unless it is set."""

_OF_MODEL = ("layers", "width", "heads", "feed_forward", "vocabulary", "context")
OF_WARM_START = (
    *(f"warm_start.{name}" for name in ("player", "hasty", "wander", "batch")),
    *(f"warm_start.model.{name}" for name in _OF_MODEL),
)
"""What is derived of a warm start without ``steps``, unless it is set."""

RECIPE = "warm_start.json"  # in a model's folder: what a warm start made it with, and what it derived


def open_to(settings: RunSettings, key: str) -> bool:
    """Whether ``key``, with dots, was left for the world to decide."""
    *path, name = key.split(".")
    section: object = settings
    for part in path:
        section = getattr(section, part, None)
    return isinstance(section, Options) and name not in section.model_fields_set


def applied(settings: RunSettings, derived: Mapping[str, Value]) -> RunSettings:
    """``settings`` with every derived value that they leave open; a value that cannot be is pydantic's error."""
    return _filled(settings, {key: value for key, value in derived.items() if open_to(settings, key)})


def with_derived(settings: RunSettings) -> RunSettings:
    """``settings`` with what was derived when the folder that ``settings.model`` names was made, if it was.

    Nothing but :data:`OF_RUN` and :data:`OF_WARM_START` is taken from a folder, whoever made it. Raises
    :class:`SettingsError` for a value that cannot be, naming the file.
    """
    path = Path(settings.model) / RECIPE
    try:
        derived = json.loads(path.read_text(encoding="utf-8"))["derived"]
        taken = {key: derived[key] for key in (*OF_RUN, *OF_WARM_START) if key in derived}
    except (OSError, ValueError, LookupError, TypeError):
        return settings  # a hub's model, or somebody else's folder
    try:
        return applied(settings, taken)
    except ValidationError as error:
        raise SettingsError(f"{path}: {explain(error, (), 'what it derived')}") from None


def dump_open(settings: RunSettings) -> str:
    """``settings`` as YAML, without what they leave to the world: of who loads it, that is still to be derived."""
    values = settings.model_dump(mode="json")
    for key in (*OF_RUN, *OF_WARM_START):
        if open_to(settings, key):
            *path, name = key.split(".")
            section = values
            for part in path:
                section = section[part]
            del section[name]
    return write_yaml(values)


def _filled(section: Section, values: Mapping[str, Value]) -> Section:
    """The section made anew of what was set and of ``values``, by the dotted key within it."""
    inner: dict[str, dict[str, Value]] = {}
    own = {name: getattr(section, name) for name in section.model_fields_set}
    for key, value in values.items():  # of this section, or of one in it
        name, _, rest = key.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    for name, theirs in inner.items():
        own[name] = _filled(getattr(section, name), theirs)
    return type(section)(**own)
