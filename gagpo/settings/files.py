"""Settings as files: one YAML file, typed, with dotted overrides and errors that name the nearest valid key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gagpo.agents.engines.registry import ENGINES, StoredOptions
from gagpo.base import renamed
from gagpo.base.core_schema import NotYaml, parse_yaml, read_mapping, write_yaml
from gagpo.base.nearest import hint, nearest
from gagpo.base.options import advice_of, by_name, by_place, complaint, key_of, sentence
from gagpo.credit import CREDITS, CreditSettings
from gagpo.settings import keys
from gagpo.settings.interface import with_interface
from gagpo.settings.run import RunSettings, SettingsError

SHIPPED = Path(__file__).parents[1] / "configs"
"""The configs that come with the package."""
_MAX_DEPTH = 32  # of keys within keys


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_config(config: str | Path) -> Path:
    """The settings file of a path or of a shipped config's name; SettingsError if there is none."""
    path = Path(config)
    if path.is_file():
        return path
    shipped = shipped_configs()
    if str(config) in shipped:
        return shipped[str(config)]
    if reason := renamed.replacement(renamed.CONFIGS, path.stem, "config"):
        raise SettingsError(f"there is no settings file {path}", advice=reason)
    if path.is_dir() and (path / "config.yaml").is_file():
        raise SettingsError("is a run folder", where=path, advice=f"`gagpo train --resume {path}` continues it")
    if path.is_dir():
        raise SettingsError("is a folder, not a settings file", where=path, advice="`gagpo list` shows those that ship")
    files = path.parent.glob("*.yaml") if path.parent.is_dir() else ()
    names = {file.stem: str(file) for file in files} | {name: name for name in shipped}
    similar = ", ".join(names[name] for name in nearest(path.stem, names, cutoff=0.6))
    near = f"nearest: {similar}; " if similar else ""
    raise SettingsError(f"there is no settings file {path}", advice=f"{near}`gagpo list` shows those that ship")


def load(config: str | Path, overrides: Sequence[str] = (), earlier: bool = False) -> RunSettings:
    """Read a YAML file and apply ``section.key=value`` overrides, whose values are YAML.

    What they leave open stays open until :func:`gagpo.settings.resolve`.

    config: a path, or the name of a shipped config.
    earlier: read names of earlier versions as the new ones: the file was stored with a run.

    Raises:
        SettingsError: the file is not YAML, a key is unknown or a value is wrong.
    """
    settings = parse(_read(config, earlier), str(config), overrides)
    return settings if earlier else with_interface(settings)  # a stored run stays as it was made


def _read(config: str | Path, earlier: bool) -> dict[str, Any]:
    values = read_mapping(find_config(config), SettingsError)
    return renamed.modernized(values) if earlier else values


def load_stored(config: str | Path, overrides: Sequence[str] = (), earlier: bool = False) -> RunSettings:
    """As :func:`load`, for commands that do not train: a credit or an engine of other code is not imported.

    The credit's name stays, its options and the critic are left out. The engine's options are validated when it is
    built. The other settings import nothing when they are read.
    """
    values = _overridden(_read(config, earlier), overrides)
    algorithm = values.get("algorithm")
    credit = by_name(algorithm.get("credit")) if isinstance(algorithm, dict) else None
    if isinstance(algorithm, dict) and isinstance(credit, dict) and credit.get("name") not in CREDITS.builtin:
        stand_in = CreditSettings(name=str(credit.get("name")))
        values["algorithm"] = {**algorithm, "preset": "", "credit": stand_in, "critic": None}
    engine = by_name(values.get("engine"))
    if isinstance(engine, dict) and engine.get("name", "transformers") not in ENGINES.builtin:
        options = StoredOptions(engine=str(engine["name"]), values=engine.get("options") or {})
        values["engine"] = {**engine, "options": options}
    settings = _validated(values, str(config), overrides)
    return settings if earlier else with_interface(settings)


def parse(values: Mapping[str, object], where: str, overrides: Sequence[str] = ()) -> RunSettings:
    """Typed settings from plain values and overrides. where: origin of the values, for errors."""
    return _validated(_overridden(values, overrides), where, overrides)


def _validated(values: dict[str, Any], where: str, overrides: Sequence[str]) -> RunSettings:
    """Typed settings from values that already hold the overrides, which errors name as the origin of their keys."""
    changed = renamed.without_removed(values)
    if old := renamed.old_names(changed):  # before validation, which would suggest the nearest key instead
        raise _joined([SettingsError(reason, key=key, where=_origin(key, where, overrides)) for key, reason in old[:5]])
    try:
        return RunSettings.model_validate(changed)
    except ValidationError as error:
        faults = list(by_place(error, lambda location: keys.place(RunSettings, location)).items())[:5]
        raise _joined([_fault(key, details, _origin(key, where, overrides)) for key, details in faults]) from None


def _joined(errors: Sequence[SettingsError]) -> SettingsError:
    """One error of all; several have no common key."""
    return errors[0] if len(errors) == 1 else SettingsError("; ".join(map(str, errors)))


def _overridden(values: Mapping[str, object], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the values with the overrides applied."""
    changed = dict(values)
    for override in overrides:
        _apply(changed, override)
    return changed


def dump(settings: RunSettings) -> str:
    """The resolved settings as YAML, readable by :func:`load`."""
    return write_yaml(settings.model_dump(mode="json"))


def _apply(values: dict[str, object], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError("must look like section.key=value", where=f"override {override!r:.80}")
    *path, last = key.split(".")
    if len(path) > _MAX_DEPTH:
        raise SettingsError(
            f"a key must have at most {_MAX_DEPTH + 1} parts (got {len(path) + 1})", where=f"override {override!r:.80}"
        )
    section: Any = values
    for depth, name in enumerate(path):
        if [name, *path[depth + 1 :], last][:2] == ["kwargs", "tasks"] and section.get("tasks"):
            continue  # an environment's `tasks` are passed on as kwargs.tasks
        index = _place(section, name, override)
        inner = section[index] if isinstance(section, list) else section.get(index)
        if isinstance(inner, str) and path[0] == "algorithm":  # a name is short for options with that name
            inner = {"name" if depth else "preset": inner}
        if isinstance(inner, str) and key.startswith("engine.") and not depth:
            inner = {"name": inner}
        several = isinstance(values.get("environments"), list)
        if inner is None and several and path[: depth + 1] == ["environment"]:
            raise SettingsError(
                "there are several environments",
                where=f"override {override!r:.80}",
                advice=(f"write environments.NAME{key.removeprefix('environment')}=..."),
            )
        inner = {} if inner is None else inner
        if not isinstance(inner, dict | list):
            raise SettingsError(f"{name!r} holds a single value, not a section", where=f"override {override!r:.80}")
        section[index] = section = inner.copy()  # the caller's values stay unchanged
    last = _place(section, last, override)
    try:
        value = parse_yaml(text)
    except NotYaml as error:
        raise SettingsError(
            f"the value is not YAML ({error})", where=f"override {override!r:.80}", advice="quote it"
        ) from None
    before = section.get(last) if key == "engine" and isinstance(value, str) else None
    if isinstance(before, dict):  # another engine samples in the same precision, but has other options
        value = {**{name: entry for name, entry in before.items() if name != "options"}, "name": value}
    section[last] = value


def _place(section: dict[str, object] | list[object], name: str, override: str) -> Any:
    """The key or index of ``name`` in a section; in a list it is a row's number or name."""
    if isinstance(section, dict):
        return name
    names = [row.get("name") if isinstance(row, dict) else None for row in section]
    if name in names:
        return names.index(name)
    number = int(name) if name.isdecimal() and len(name) < 4 else len(section)
    if number >= len(section):
        row_names = [str(row_name) for row_name in names if row_name is not None]
        raise SettingsError(
            f"there is no row {name!r:.40}", where=f"override {override!r:.80}", advice=hint(name, row_names)
        )
    return number


def _fault(key: str, details: Sequence[ErrorDetails], where: str) -> SettingsError:
    """What is wrong with the value of a key. where: its origin."""
    problem, advice = _problem(key, details)
    return SettingsError(problem, key=key_of(key, details[0]), where=where, advice=advice)


def _problem(key: str, details: Sequence[ErrorDetails]) -> tuple[str, str | None]:
    """The problem, and the advice if there is any."""
    error_type = details[0]["type"]
    if error_type == "extra_forbidden":
        if (near := keys.nearest_key(RunSettings, key)) != key:
            return f"unknown key {key!r}", f"the nearest valid key is {near!r}"
        if "." in str(details[0]["loc"][-1]):
            written = "write " + ": {".join(key.split(".")) + ": ..." + "}" * key.count(".")
            return f"key {key!r} must be written in sections", written
        return f"key {key!r} belongs to another choice than the one in {key.rpartition('.')[0]!r}", None
    if error_type == "missing":
        return f"key {key!r} is missing", None
    return sentence(key or "settings", complaint(*details)), advice_of(details[0])


def _origin(key: str, where: str, overrides: Sequence[str]) -> str:
    """The origin of a wrong value: the last override of ``key``, of a part or of its section; else ``where``."""
    for override in reversed(overrides):
        overridden = override.partition("=")[0]
        if not key or f"{overridden}.".startswith(f"{key}.") or f"{key}.".startswith(f"{overridden}."):
            return f"override {override!r:.80}"
    return where
