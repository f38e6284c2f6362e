"""Typed options that reject unknown keys: the base of all settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.nearest import hint


class Options(BaseModel):
    """Immutable options; unknown keys, wrong types, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def by_name(value: object) -> object:
    """``"sapo"`` is short for ``{"name": "sapo"}``."""
    return {"name": value} if isinstance(value, str) else value


class Flag:
    """Marks a field that is an option of a command, in its ``Annotated`` type.

    names: as they are typed, such as ``--env``; by default the field's name with dashes.
    panel: of a field that is a section: the title under which the help lists the section's options, "" for none.
    """

    def __init__(self, *names: str, panel: str = ""):
        self.names = names
        self.panel = panel


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")

_WORDS = {
    "Field required": "is missing",
    "Extra inputs are not permitted": "is unknown",
    "Unexpected keyword argument": "is unknown",
    "Input should be": "must be",
    "a valid integer": "an integer",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid dictionary": "a mapping",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""pydantic's words, and the common ones."""


def in_words(message: str) -> str:
    """pydantic's message in common words.

    >>> in_words("Input should be a valid integer, unable to parse string as an integer")
    'must be an integer'
    >>> in_words("Input should be greater than or equal to 1")
    'must be at least 1'
    """
    if message.startswith("Value error, "):  # one of ours
        return message.removeprefix("Value error, ")
    message = re.sub("(, unable to | or instance of |, got a number ).*", "", message)
    for pydantic_words, common in _WORDS.items():
        message = message.replace(pydantic_words, common)
    return message


def complaint(error: ErrorDetails, *alternatives: ErrorDetails) -> str:
    """What is wrong with a value, without the advice, and the value unless the message names it.

    alternatives: the errors of the value's other possible types.
    """
    further = [in_words(alternative["msg"]).removeprefix("must be ") for alternative in alternatives]
    cause = _cause(error)
    if error["type"] == "union_tag_invalid":  # one of several sections, chosen by its name
        context = error["ctx"]
        names = re.findall("'([^']*)'", context["expected_tags"])
        return f"there is no {context['tag']!r:.80}; {hint(context['tag'], names)}"
    message = " or ".join([cause.placed if cause else in_words(error["msg"]), *further])
    value = error["input"]
    is_named = "got " in message or (isinstance(value, str) and value and value in message)
    if is_named or not isinstance(value, str | int | float | None):
        return message
    return f"{message} (got {value!r:.80})"


def _cause(error: ErrorDetails) -> GagpoError | None:
    """The error that a validator of this project raised."""
    cause = error.get("ctx", {}).get("error")
    return cause if isinstance(cause, GagpoError) else None


def key_of(key: str, error: ErrorDetails) -> str:
    """The key that a validator of a whole section names, else the key whose value is wrong."""
    cause = _cause(error)
    if cause is None or cause.key is None:
        return key
    if not key or "." in cause.key:
        return cause.key
    return key if f".{key}".endswith(f".{cause.key}") else f"{key}.{cause.key}"


def advice_of(error: ErrorDetails) -> str | None:
    """What a validator of this project advises."""
    cause = _cause(error)
    return cause.advice if cause else None


def sentence(place: str, message: str) -> str:
    """The message about the option at ``place``."""
    return f"{place} {message}" if message.startswith(("must ", "is ")) else f"{place}: {message}"


def by_place(error: ValidationError, place: Callable[[Sequence[str]], str] = ".".join) -> dict[str, list[ErrorDetails]]:
    """The errors by dotted key; a value of several possible types has one for each. place: the key of a location."""
    errors: dict[str, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        key = place([str(step) for step in written(details["loc"])])
        errors.setdefault(key, []).append(details)
    return errors


def written(location: Sequence[int | str]) -> list[int | str]:
    """A location without the names that pydantic adds for types that it tries in turn, such as ``list[str]``."""
    named = location[:-1] if location[1:] and location[-1] in ("str", "int", "float", "bool", "date") else location
    return [step for step in named if not re.fullmatch(r"(literal|list|dict)\[.*\]", str(step))]


def faults(
    error: ValidationError, options: Iterable[str], where: object = None, prefix: str = ""
) -> list[InvalidArgument]:
    """An error for each wrong value; an unknown key with the nearest ``options``.

    where: of all of them.
    prefix: of all keys.
    """
    errors = []
    for place, details in by_place(error).items():
        key = f"{prefix}{place}" if place else ""
        if details[0]["type"] in UNKNOWN:
            problem = f"unknown option {key!r}"
            errors.append(InvalidArgument(problem, key=key, where=where, advice=hint(place, options)))
        else:
            message = sentence(key, complaint(*details)) if key else complaint(*details)
            advice = advice_of(details[0])
            errors.append(InvalidArgument(message, key=key_of(key, details[0]) or None, where=where, advice=advice))
    return errors


def problems(error: ValidationError) -> list[tuple[str, str, bool]]:
    """For each wrong value: the dotted key, the message with its advice, and whether the key is unknown."""
    return [
        (key, "; ".join(filter(None, (complaint(*errors), advice_of(errors[0])))), errors[0]["type"] in UNKNOWN)
        for key, errors in by_place(error).items()
    ]


def joined(errors: Sequence[InvalidArgument]) -> InvalidArgument:
    """One error of all, on one line; several have no common key."""
    return errors[0] if len(errors) == 1 else InvalidArgument("; ".join(map(str, errors)))


def explain(error: ValidationError, names: Iterable[str], owner: object) -> InvalidArgument:
    """The errors in the options of ``owner``; unknown keys with the nearest of its options' ``names``."""
    return joined(faults(error, [name for name in names if name != "name"], owner))
