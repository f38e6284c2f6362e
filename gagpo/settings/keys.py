"""Which keys a run's settings have, and the one that was probably meant by one they have not."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from gagpo.credit import CreditSettings
from gagpo.credit.registry import OURS, find


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key below ``model``, with dots, sections included; of a choice of cells those of every choice."""
    for name, field in model.model_fields.items():
        place = f"{path}.{name}".strip(".")
        yield place
        for kind in cells(field.annotation):
            yield from keys(kind, place)


def cells(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field may hold."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, CreditSettings):
            return [find(name) for name in OURS]
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [kind for one in typing.get_args(annotation) for kind in cells(one)]


def place(model: type[BaseModel], location: Sequence[str]) -> str:
    """A place in a validation error as the user wrote it: without the names of the cells chosen among."""
    written: list[str] = []
    models = [model]
    for part in location:
        if any(part in one.model_fields for one in models):
            models = [
                kind for one in models if part in one.model_fields for kind in cells(one.model_fields[part].annotation)
            ]
        elif written and any(one.model_fields["name"].default == part for one in models if "name" in one.model_fields):
            continue
        written.append(part)
    return ".".join(written)


def nearest(model: type[BaseModel], wrong: str) -> str:
    """The valid key most like ``wrong``: a neighbour of its section, else one that ends alike anywhere, else any."""
    known = list(dict.fromkeys(keys(model)))
    section, _, last = wrong.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    if near := difflib.get_close_matches(last, beside, n=1, cutoff=0.6):
        return beside[near[0]]
    endings: dict[str, list[str]] = {}
    for key in known:
        endings.setdefault(key.rpartition(".")[2], []).append(key)
    if near := difflib.get_close_matches(last, endings, n=1, cutoff=0.7):
        return max(endings[near[0]], key=lambda key: difflib.SequenceMatcher(None, key, wrong).ratio())
    return (difflib.get_close_matches(wrong, known, n=1, cutoff=0.0) or [""])[0]
