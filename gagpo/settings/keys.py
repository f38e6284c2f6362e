"""Which keys a run's settings have, and the one that was probably meant by one they have not."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from gagpo.base.nearest import nearest
from gagpo.controllers.curriculum import CURRICULA, Curriculum
from gagpo.credit import CreditSettings, find
from gagpo.credit.registry import CREDITS

SLIP = 0.8  # how alike two names are of which one was meant for the other


def keys(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key below ``section``, with dots, sections included; of a choice of options those of every choice."""
    for name, field in section.model_fields.items():
        # A section is a key itself, before those in it.
        place = f"{path}.{name}".strip(".")
        yield place
        for option in options(field.annotation):
            yield from keys(option, place)


def options(annotation: object) -> list[type[BaseModel]]:
    """The sections that a field may hold; of one for any credit or curriculum, this package's, but none of a list of
    credits.

    A sum of credits is a credit, so that keys would have no end.
    """
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, CreditSettings):
            return [find(name) for name in CREDITS.ours]
        if issubclass(annotation, Curriculum):
            return [CURRICULA.find(name) for name in CURRICULA.ours]
        return [annotation] if issubclass(annotation, BaseModel) else []
    found = [option for part in typing.get_args(annotation) for option in options(part)]
    if typing.get_origin(annotation) is list:
        return [option for option in found if not issubclass(option, CreditSettings)]
    return found


def place(section: type[BaseModel], location: Sequence[str]) -> str:
    """A place in a validation error as the user wrote it: without the names of the options chosen among."""
    written: list[str] = []
    sections = [section]
    for part in location:
        fields = [one.model_fields for one in sections]
        inner = [option for field in fields if part in field for option in options(field[part].annotation)]
        # A discriminated choice adds the chosen name to the location: nobody wrote it.
        if not any(part in field for field in fields):
            if written and any(field["name"].default == part for field in fields if "name" in field):
                continue
            inner = sections
        sections = inner
        written.append(part)
    return ".".join(written)


def nearest_key(section: type[BaseModel], wrong: str, cutoff: float = 0.0) -> str:
    """The valid key most like ``wrong``: a neighbour of its section by a slip of the pen, else one of the same ending,
    else a less like neighbour, else one that ends alike anywhere, else any.

    cutoff: how alike at least, from 0 to 1, if it ends otherwise; nothing where none is.
    """
    known = list(dict.fromkeys(keys(section)))
    above, _, last = wrong.rpartition(".")
    by_ending: dict[str, list[str]] = {}
    for key in known:
        by_ending.setdefault(key.rpartition(".")[2], []).append(key)
    beside = [ending for ending, found in by_ending.items() if f"{above}.{ending}".strip(".") in found]
    for least in (SLIP, max(cutoff, 0.6)):
        if near := nearest(last, beside, 1, cutoff=least):
            return f"{above}.{near[0]}".strip(".")
        if last in by_ending:
            return nearest(wrong, by_ending[last], 1, cutoff=0.0)[0]
    alike = [key for ending in nearest(last, by_ending, 1, cutoff=0.7) for key in by_ending[ending]]
    return next(iter(nearest(wrong, alike or known, 1, cutoff=0.0 if alike else cutoff)), "")
