"""The file ``sft.json`` in a model's folder: the settings of SFT, and what it derived from the demonstrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gagpo.base.options import explain
from gagpo.base.renamed import modernized
from gagpo.settings.run import RunSettings, SettingsError

Value = str | float | int
Derived = dict[str, Value]
"""Values by dotted key, such as ``{"rollout.max_tokens": 6}``."""

OF_RUN = ("rollout.max_tokens", "optimizer.learning_rate")
"""Keys that a run takes from its model's folder unless they are set in its config."""

RECIPE = "sft.json"
"""File in a model's folder with the settings of SFT, and what was derived and measured."""


def is_set(settings: RunSettings, key: str) -> bool:
    """Whether the user set ``key``, such as ``rollout.max_tokens``."""
    section, _, name = key.partition(".")
    return name in getattr(settings, section).model_fields_set


def derived_values(settings: RunSettings) -> dict[str, Value]:
    """The values of :data:`OF_RUN` that SFT derived for the model ``settings.model``; empty if SFT did not make it.

    Raises:
        SettingsError: a value is invalid.
    """
    path = Path(settings.model) / RECIPE
    try:
        derived = dict(json.loads(path.read_text(encoding="utf-8"))["derived"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    values = {key: derived[key] for key in OF_RUN if key in derived}
    for key, value in values.items():
        section, _, field = key.partition(".")
        try:
            type(getattr(settings, section)).model_validate({field: value})
        except ValidationError as error:
            raise SettingsError(f"{path}: {explain(error, (), 'derived')}") from None
    return values


def model_or_base(settings: RunSettings) -> str:
    """The run's model or, until SFT has made its folder, the model that SFT starts from."""
    base = settings.sft.base_model if settings.sft is not None else None
    return base if base is not None and not Path(settings.model).exists() else settings.model


def recipe(settings: RunSettings) -> dict[str, Any]:
    """The settings that determine the result of SFT, as plain data."""
    names = ("context", "sft") if settings.environments else ("environment", "context", "sft")
    made: dict[str, Any] = {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}
    if settings.environments:
        shown = {"weight", "id", "split", "kwargs", "context"}
        made["environments"] = {row.name: row.model_dump(mode="json", include=shown) for row in settings.environments}
    return made


def recipe_difference(settings: RunSettings, folder: Path | None = None) -> str:
    """The first setting of SFT that differs from those in ``folder`` (default: ``settings.model``); '' if none does."""
    try:
        made = json.loads(((folder or Path(settings.model)) / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # not made by SFT
    then = _flat({name: value for name, value in modernized(made).items() if name not in ("derived", "measured")})
    now = _flat(recipe(settings))
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            return f"{name}: {then.get(name)} then, {now.get(name)} now"
    return ""


def refuse_other(work: Path, settings: RunSettings) -> None:
    """Raise :class:`SettingsError` if the unfinished SFT in ``work`` has other settings."""
    if difference := recipe_difference(settings, work / "start"):
        raise SettingsError(f"{work} was begun with other settings ({difference}); delete it to start again")


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, part in value.items() for path, leaf in _flat(part, f"{name}.{key}".strip(".")).items()}
