"""The settings that decide what SFT makes: stored beside the model and compared before it is used or continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.derived import RECIPE

NOT_COMPARED = ("derived", "measured")


def recipe(settings: RunSettings) -> dict[str, Any]:
    """The settings that decide what SFT makes, as plain data."""
    names = ("context", "sft") if settings.environments else ("environment", "context", "sft")
    made: dict[str, Any] = {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}
    if settings.environments:
        shown = {"weight", "id", "split", "kwargs", "context"}
        made["environments"] = {row.name: row.model_dump(mode="json", include=shown) for row in settings.environments}
    return made


def recipe_difference(settings: RunSettings, folder: Path | None = None) -> str:
    """The first setting that the model in ``folder`` was made with another value of; '' if there is none.

    folder: absent for the one that ``settings.model`` names.
    """
    try:
        made = json.loads(((folder or Path(settings.model)) / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # a folder that SFT did not make
    then = _flat({name: value for name, value in made.items() if name not in NOT_COMPARED})
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
