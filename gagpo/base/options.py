"""Typed options that reject unknown keys: the base of all settings."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, ValidationError

from gagpo.base.nearest import hint


class Options(BaseModel):
    """Immutable options; unknown keys, wrong types, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def by_name(value: object) -> object:
    """``"sapo"`` is short for ``{"name": "sapo"}``."""
    return {"name": value} if isinstance(value, str) else value


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def problems(error: ValidationError) -> list[tuple[str, str, bool]]:
    """For each error: the dotted key, the message, and whether the key is unknown."""
    return [
        (".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, "), one["type"] in UNKNOWN)
        for one in error.errors(include_url=False)
    ]


def explain(error: ValidationError, known: Iterable[str], what: str) -> str:
    """The errors in the options of ``what``, on one line; unknown keys with the nearest ``known`` ones."""
    own = [name for name in known if name != "name"]
    lines = []
    for option, message, unknown in problems(error):
        place = f"{what}: {option}" if option else what
        lines.append(f"{what} has no option {option!r}; {hint(option, own)}" if unknown else f"{place}: {message}")
    return "; ".join(lines)
