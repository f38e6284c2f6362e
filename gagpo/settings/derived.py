"""The file ``sft.json`` in a model's folder: the settings of SFT, and the values derived from the demonstrations."""

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
"""File in a model's folder with the settings of SFT, and the derived and measured values."""


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
            raise SettingsError(explain(error, (), "derived"), where=path) from None
    return values


def model_or_base(settings: RunSettings) -> str:
    """The run's model or, if SFT has yet to make its folder, the model that SFT starts from."""
    if settings.sft is None or settings.sft.base_model is None or Path(settings.model).exists():
        return settings.model
    return settings.sft.base_model


def recipe(settings: RunSettings) -> dict[str, Any]:
    """The settings that determine the result of SFT, as plain data."""
    names = ("context", "sft") if settings.environments else ("environment", "context", "sft")
    sections: dict[str, Any] = {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}
    if settings.environments:
        fields = {"weight", "id", "split", "kwargs", "context"}
        rows = {row.name: row.model_dump(mode="json", include=fields) for row in settings.environments}
        sections["environments"] = rows
    return sections


def recipe_difference(settings: RunSettings, folder: Path | None = None) -> str:
    """The first setting of SFT that differs from those in ``folder`` (default: ``settings.model``); '' if none does."""
    try:
        stored = json.loads(((folder or Path(settings.model)) / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # not made by SFT
    before = _flat({name: value for name, value in modernized(stored).items() if name not in ("derived", "measured")})
    after = _flat(recipe(settings))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            return f"{name}: {before.get(name)} then, {after.get(name)} now"
    return ""


def require_same_recipe(work: Path, settings: RunSettings) -> None:
    """Raise :class:`SettingsError` if the unfinished SFT in ``work`` has other settings."""
    if difference := recipe_difference(settings, work / "start"):
        raise SettingsError(
            f"was started with other settings ({difference})", where=work, advice="delete it to start again"
        )


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {
        path: leaf for key, inner in value.items() for path, leaf in _flat(inner, f"{name}.{key}".strip(".")).items()
    }
