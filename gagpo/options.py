"""What settings are made of: a few typed options that refuse what they do not know."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, ValidationError

from gagpo.envs.nearest import hint


class Options(BaseModel):
    """Options that cannot be changed once made; unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def by_name(value: object) -> object:
    """``"sapo"`` is short for ``{"name": "sapo"}``."""
    return {"name": value} if isinstance(value, str) else value


def explain(error: ValidationError, known: Iterable[str], what: str) -> str:
    """What is wrong with the options of ``what``, in one line; unknown ones with the nearest ``known`` ones."""
    lines = []
    for problem in error.errors(include_url=False):
        option = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{what} has no option {option!r}; {hint(option, (name for name in known if name != 'name'))}")
        else:
            lines.append(f"{what}: {option}: {message}" if option else f"{what}: {message}")
    return "; ".join(lines)
