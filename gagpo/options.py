"""What a cell of an algorithm is: a few typed options that refuse what they do not know."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Options(BaseModel):
    """Options that cannot be changed once made; unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def by_name(value: Any) -> Any:
    """``"sapo"`` is short for ``{"name": "sapo"}``."""
    return {"name": value} if isinstance(value, str) else value


def nearest(name: str, known: Iterable[str]) -> str:
    """The names most like ``name``, or all of them where none is like it: ``nearest: a, b`` or ``known: a, b, c``."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"{'nearest' if near else 'known'}: {', '.join(near or known)}"


def explain(error: ValidationError, cell: type[BaseModel], what: str) -> str:
    """What is wrong with the options of ``what``, in one line; unknown ones come with the nearest valid ones."""
    lines = []
    for problem in error.errors(include_url=False):
        option = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            options = [name for name in cell.model_fields if name != "name"]
            lines.append(f"{what} has no option {option!r}; {nearest(option, options)}")
        else:
            lines.append(f"{what}: {option}: {message}" if option else f"{what}: {message}")
    return "; ".join(lines)
