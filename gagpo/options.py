"""What an option of an algorithm is: a few typed options that refuse what they do not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from gagpo.envs.nearest import hint


class Options(BaseModel):
    """Options that cannot be changed once made; unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def by_name(value: object) -> object:
    """``"sapo"`` is short for ``{"name": "sapo"}``."""
    return {"name": value} if isinstance(value, str) else value


def explain(error: ValidationError, kind: type[BaseModel], what: str) -> str:
    """What is wrong with the options of ``what``, in one line; unknown ones come with the nearest valid ones."""
    lines = []
    for problem in error.errors(include_url=False):
        option = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            options = [name for name in kind.model_fields if name != "name"]
            lines.append(f"{what} has no option {option!r}; {hint(option, options)}")
        else:
            lines.append(f"{what}: {option}: {message}" if option else f"{what}: {message}")
    return "; ".join(lines)
