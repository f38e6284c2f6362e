"""Settings that a run takes from its model's folder: what SFT derived from the environment's texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gagpo.base.options import explain
from gagpo.settings.errors import SettingsError
from gagpo.settings.run import RunSettings

Value = str | float | int
Derived = dict[str, Value]
"""Values by dotted key, as in ``{"rollout.max_tokens": 6}``."""

OF_RUN = ("rollout.max_tokens", "optimizer.learning_rate")
"""Keys that a run takes from its model's folder unless they are set."""

RECIPE = "sft.json"
"""File in a model's folder: the settings of SFT, and what was derived and measured."""


def is_set(settings: RunSettings, key: str) -> bool:
    """Whether the user set ``key``, such as ``rollout.max_tokens``."""
    section, _, name = key.partition(".")
    return name in getattr(settings, section).model_fields_set


def applied(settings: RunSettings, derived: Mapping[str, Value]) -> RunSettings:
    """``settings`` with the derived values of :data:`OF_RUN` that they do not set.

    Raises:
        pydantic.ValidationError: a derived value is not valid.
    """
    changed = {}
    for key in OF_RUN:
        if key in derived and not is_set(settings, key):
            name, _, field = key.partition(".")
            section = getattr(settings, name)
            own = {given: getattr(section, given) for given in section.model_fields_set}
            changed[name] = type(section)(**own, **{field: derived[key]})
    return settings.model_copy(update=changed)


def with_derived(settings: RunSettings) -> RunSettings:
    """``settings`` with what was derived when the folder ``settings.model`` was made. Only :data:`OF_RUN` is read.

    Raises:
        SettingsError: a derived value is not valid; the message names the file.
    """
    path = Path(settings.model) / RECIPE
    try:
        derived = dict(json.loads(path.read_text(encoding="utf-8"))["derived"])
    except (OSError, ValueError, LookupError, TypeError):
        return settings  # a model from a hub, or a folder that SFT did not make
    try:
        return applied(settings, derived)
    except ValidationError as error:
        raise SettingsError(f"{path}: {explain(error, (), 'derived')}") from None
