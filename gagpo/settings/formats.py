"""The number formats of a run: ``auto`` in its settings becomes what its machine computes fast."""

from __future__ import annotations

from collections.abc import Mapping

from gagpo.model.dtypes import AUTO
from gagpo.settings.run import RunSettings

UNSHARDED = "training.unsharded"


def formats_of(settings: RunSettings) -> dict[str, str]:
    """The formats of a run by key, ``auto`` included."""
    formats: dict[str, str] = {"training.dtype": settings.training.dtype, "engine.dtype": settings.engine.dtype}
    if settings.lora is not None:
        formats["lora.base_dtype"] = settings.lora.base_dtype
    return formats


def is_open(settings: RunSettings) -> bool:
    """Whether a format is still to be chosen by the machine."""
    return AUTO in formats_of(settings).values()


def formats_line(settings: RunSettings) -> str:
    """The formats that the settings name, in a line."""
    return ", ".join(f"{key} {value}" for key, value in formats_of(settings).items())


def with_formats(settings: RunSettings, training: str, sampling: str) -> RunSettings:
    """The settings with these formats wherever they say ``auto``.

    Frozen matrices of a base are stored in bfloat16 only if both training and sampling compute in it: they round to it
    anyway then, and storing them so changes no update.
    """
    choice = {"training.dtype": training, "engine.dtype": sampling}
    chosen = {key: choice.get(key, value) if value == AUTO else value for key, value in formats_of(settings).items()}
    if settings.lora is not None and settings.lora.base_dtype == AUTO:
        in_half = chosen["training.dtype"] == chosen["engine.dtype"] == "bfloat16"
        chosen["lora.base_dtype"] = "bfloat16" if in_half else "float32"
    return _with(settings, chosen)


def with_formats_of(settings: RunSettings, stored: RunSettings) -> RunSettings:
    """The settings with what ``stored`` chose wherever they say ``auto``: a run keeps its choices anywhere."""
    before = formats_of(stored) | {UNSHARDED: stored.training.unsharded}
    now = formats_of(settings) | {UNSHARDED: settings.training.unsharded}
    return _with(settings, {key: before.get(key, value) for key, value in now.items() if value == AUTO})


def with_unsharded(settings: RunSettings, unsharded: str) -> RunSettings:
    """The settings with this ``training.unsharded``."""
    return _with(settings, {UNSHARDED: unsharded})


def _with(settings: RunSettings, choices: Mapping[str, str]) -> RunSettings:
    fields: dict[str, dict[str, str]] = {}  # by section, because one section may have several
    for key, value in choices.items():
        section, _, field = key.partition(".")
        if getattr(getattr(settings, section), field) != value:
            fields.setdefault(section, {})[field] = value
    changed = {section: getattr(settings, section).model_copy(update=update) for section, update in fields.items()}
    return settings.model_copy(update=changed) if changed else settings
