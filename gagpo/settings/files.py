"""Settings as files: one YAML file, typed, with dotted overrides and errors that name the nearest valid key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gagpo.envs.nearest import hint
from gagpo.settings import keys
from gagpo.settings.errors import SettingsError
from gagpo.settings.run import RunSettings

SHIPPED = Path(__file__).parents[1] / "configs"
"""The configs that come with the package."""


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_config(config: str | Path) -> Path:
    """The settings file of a path, or of the name of a shipped config (``alfworld-small``); else SettingsError."""
    path = Path(config)
    if path.is_file():
        return path
    known = shipped_configs()
    if str(config) in known:
        return known[str(config)]
    if path.is_dir() and (path / "config.yaml").is_file():
        raise SettingsError(f"{path} is a run folder; `gagpo train --resume {path}` continues it")
    raise SettingsError(
        f"there is no settings file {path}; {hint(path.stem, known)} (`gagpo configs` lists those that ship)"
    )


def read_mapping(path: Path) -> dict[str, object]:
    """The keys and values of a YAML file; :class:`SettingsError` for anything else."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first = str(error).replace("\n", " ")[:300] or type(error).__name__
        raise SettingsError(f"{path} is not a YAML file: {first}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold keys and values, got {type(values).__name__}")
    return values


def load(config: str | Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Read a YAML file and apply ``section.key=value`` overrides (values are YAML too).

    config: a path, or the name of a shipped config. Raises :class:`SettingsError` for a file that is not YAML, an
    unknown key (naming the nearest) or a wrong type.
    """
    path = find_config(config)
    values = read_mapping(path)
    for override in overrides:
        _apply(values, override)
    return parse(values, str(path))


def parse(values: Mapping[str, object], where: str) -> RunSettings:
    """Typed settings from plain values; ``where`` names their origin in errors."""
    try:
        return RunSettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(item, where) for item in error.errors()[:5])) from None


def with_overrides(settings: RunSettings, overrides: Sequence[str]) -> RunSettings:
    """The settings with ``section.key=value`` overrides applied; :class:`SettingsError` for a wrong one."""
    values = settings.model_dump(mode="json")
    for override in overrides:
        _apply(values, override)
    return parse(values, "the settings")


def dump(settings: RunSettings) -> str:
    """The resolved settings as YAML, readable by :func:`load`."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(values: dict[str, object], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"an override looks like section.key=value, got {override!r}")
    *path, last = key.split(".")
    section = values
    for depth, name in enumerate(path):
        inner = section.get(name)
        if isinstance(inner, str) and path[0] == "algorithm":  # a mere name is short for options with that name
            inner = {"name" if depth else "preset": inner}
        inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise SettingsError(f"override {override!r}: {name!r} holds a single value, not a section")
        section[name] = section = inner
    try:
        section[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SettingsError(f"override {override!r}: the value is not YAML; quote it") from None


def _explain(item: ErrorDetails, where: str) -> str:
    location = [str(part) for part in item["loc"]]
    key = keys.place(RunSettings, location)
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; the nearest valid key is {keys.nearest_key(RunSettings, key)!r}"
    if item["type"] == "missing":
        return f"{where}: key {key!r} is missing"
    message = item["msg"].removeprefix("Value error, ")
    plain = isinstance(item["input"], str | int | float | None)
    return f"{where}: {key or 'settings'}: {message}" + (f", got {item['input']!r:.80}" if location and plain else "")
