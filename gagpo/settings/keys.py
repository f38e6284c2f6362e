"""The keys of a run's settings, and the nearest valid key to a wrong one."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from gagpo.agents.engines.options import EngineOptions
from gagpo.agents.engines.registry import ENGINES
from gagpo.base.nearest import nearest
from gagpo.credit import CREDITS, CreditSettings

SLIP = 0.8  # minimum similarity of a name and its misspelling

CHANGEABLE = (
    "processes",
    "ranks.timeout",
    "training.iterations",
    "training.max_turns",
    "training.save_every",
    "training.max_checkpoints",
    "training.best_metric",
    "training.save_episodes_every",
    "training.offload",
    "training.unsharded",
    "rollout.workers",
    "threads",
)
"""Settings that may change when a run is resumed; they do not affect learning."""


def keys(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """All dotted keys below ``section``, including sections and all choices of options."""
    for name, field in section.model_fields.items():
        key = f"{path}.{name}".strip(".")
        yield key
        for option in options(field.annotation):
            yield from keys(option, key)


def options(annotation: object) -> list[type[BaseModel]]:
    """The sections that a field may hold, with all credits and engines of this package.

    A list of credits has none: a sum of credits is a credit, so its keys would have no end.
    """
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, CreditSettings):
            return [CREDITS.find(name) for name in CREDITS.builtin]
        if issubclass(annotation, EngineOptions):
            return [ENGINES.find(name) for name in ENGINES.builtin]
        return [annotation] if issubclass(annotation, BaseModel) else []
    sections = [option for argument in typing.get_args(annotation) for option in options(argument)]
    if typing.get_origin(annotation) is list:
        return [option for option in sections if not issubclass(option, CreditSettings)]
    return sections


def place(section: type[BaseModel], location: Sequence[str]) -> str:
    """The dotted key of a place in a validation error."""
    written: list[str] = []
    sections = [section]
    for step in location:
        fields = [section.model_fields for section in sections]
        inner = [option for field in fields if step in field for option in options(field[step].annotation)]
        # A discriminated choice adds its name to the location, which is not in the file.
        if not any(step in field for field in fields):
            if written and any(field["name"].default == step for field in fields if "name" in field):
                continue
            inner = sections
        sections = inner
        written.append(step)
    return ".".join(written)


def nearest_key(section: type[BaseModel], wrong: str, cutoff: float = 0.0) -> str:
    """The valid key that is most similar to ``wrong``; '' if no similarity reaches ``cutoff``, from 0 to 1.

    A misspelt key of the same section comes first, then the same name elsewhere, then less similar names.
    """
    valid = list(dict.fromkeys(keys(section)))
    above, _, last = wrong.rpartition(".")
    endings = [key.rpartition(".")[2] for key in valid]
    siblings = {end: key for key, end in zip(valid, endings, strict=True) if key == f"{above}.{end}".strip(".")}
    elsewhere = [key for key, end in zip(valid, endings, strict=True) if end == last]
    for minimum in (SLIP, max(cutoff, 0.6)):
        if near := nearest(last, siblings, 1, cutoff=minimum):
            return siblings[near[0]]
        if elsewhere:
            return nearest(wrong, elsewhere, 1, cutoff=0.0)[0]
    similar_names = nearest(last, dict.fromkeys(endings), 1, cutoff=0.7)
    similar = [key for key, end in zip(valid, endings, strict=True) if end in similar_names]
    return next(iter(nearest(wrong, similar or valid, 1, cutoff=0.0 if similar else cutoff)), "")
