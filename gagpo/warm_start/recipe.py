"""What a warm start was made with: written beside the model, and compared with the settings of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gagpo.settings import RunSettings, SettingsError, WarmStartSettings
from gagpo.settings.derived import OF_WARM_START, RECIPE, open_to

TAUGHT_BY = ("model", "style", "temperature", "max_tokens")  # what of a teacher decides what it plays


def recipe(settings: RunSettings) -> dict[str, Any]:
    """All that decides what a warm start makes, as plain data; what is left to the world is called ``derived``."""
    names = ("context", "warm_start") if settings.environments else ("environment", "context", "warm_start")
    made: dict[str, Any] = {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}
    shown = {"weight", "id", "split", "kwargs", "context"}  # of a row: what decides the demonstrations
    if settings.environments:
        made["environments"] = {row.name: row.model_dump(mode="json", include=shown) for row in settings.environments}
    teacher = (made["warm_start"] or {}).get("teacher")
    if teacher:  # where it runs, how fast and at what price decides nothing
        made["warm_start"]["teacher"] = {name: teacher[name] for name in TAUGHT_BY}
    if settings.warm_start is not None and settings.warm_start.steps is None:
        for key in filter(lambda key: open_to(settings, key), OF_WARM_START):  # whatever the world decides
            _, *section, name = key.split(".")
            (made["warm_start"]["model"] if section else made["warm_start"])[name] = "derived"
    return made


def recipe_difference(settings: RunSettings) -> str:
    """Which setting the folder that ``settings.model`` names was made with another value of; '' if none or unknown."""
    for name, then, now in _differences(Path(settings.model), settings):
        return f"{name}: {then} then, {now} now"
    return ""


def _differences(folder: Path, settings: RunSettings) -> list[tuple[str, object, object]]:
    """Name, value then and value now of every setting that the model in ``folder`` was not made with."""
    try:
        made = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # somebody else's folder: nothing says how it was made
    now = _flat(recipe(settings))
    then = {name: value for name, value in _flat(made).items() if name.partition(".")[0] not in ("derived", "measured")}
    if isinstance(made.get("warm_start"), dict):  # made before a setting existed is made with its default
        usual = _flat({"warm_start": WarmStartSettings().model_dump(mode="json")})
        then |= {name: usual[name] for name in now.keys() & usual.keys() - then.keys()}
    names = sorted(then.keys() | now.keys())
    return [(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, part in value.items() for path, leaf in _flat(part, f"{name}.{key}".strip(".")).items()}


def refuse_other(work: Path, settings: RunSettings) -> None:
    """Raise :class:`SettingsError` if what is under way in ``work`` was begun with settings that make another model.

    The number of steps may still be changed, and how often the state is written.
    """
    for name, then, now in _differences(work / "start", settings):
        if name not in ("warm_start.steps", "warm_start.most_steps", "warm_start.save_minutes"):
            raise SettingsError(
                f"{work} was begun with other settings ({name}: {then} then, {now} now); delete it to begin anew"
            )
