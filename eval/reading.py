"""Reading JSON that somebody else may have written: every value is checked, every complaint names file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gagpo.envs.errors import GagpoError

WANTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
}


class BadResult(GagpoError, ValueError):
    """A file that cannot be used; the one-line message names the file and the key."""


class Document(BaseModel):
    """A JSON object with typed keys. Types are exact and numbers finite; keys that nobody asked for are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


D = TypeVar("D", bound=Document)


def read_as(kind: type[D], text: str, name: str) -> D:
    """The text as a document of that kind; :class:`BadResult` names ``name`` and the first key that is wrong.

    >>> class Panel(Document):
    ...     tasks: int
    >>> read_as(Panel, '{"tasks": "ten"}', "after.json")
    Traceback (most recent call last):
    gagpo.eval.reading.BadResult: after.json: key 'tasks' must be a whole number, got 'ten'
    """
    try:
        return kind.model_validate(parse(text, name))
    except ValidationError as error:
        raise BadResult(f"{name}: {_complaint(error.errors()[0])}") from None
    except OverflowError:
        raise BadResult(f"{name}: holds a whole number beyond all sizes") from None


def parse(text: str, name: str) -> Any:
    """What the JSON text says; :class:`BadResult` when it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise BadResult(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise BadResult(f"{name}: not JSON ({error})") from None


def read_text(path: Path) -> str:
    """The file as UTF-8 text; :class:`BadResult` when it cannot be read, with the reason."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadResult(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise BadResult(f"{path}: cannot be read ({error.strerror})") from None


def read_record(path: Path) -> dict[str, Any]:
    """A JSON object such as ``versions.json``; empty when there is no such file."""
    record = parse(read_text(path), str(path)) if path.exists() else {}
    if not isinstance(record, dict):
        raise BadResult(f"{path}: the document must be an object, got {shortened(record)}")
    return record


def key_path(location: tuple[int | str, ...]) -> str:
    """``("tasks", 0, "tries")`` as ``tasks[0].tries``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def shortened(value: object) -> str:
    """A value as it is shown in a complaint: at most sixty characters."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _complaint(error: Any) -> str:
    """One line for one of pydantic's errors; validators of ours raise ValueError with what was wanted."""
    kind, context = error["type"], error.get("ctx", {})
    where = f"key {key_path(error['loc'])!r}" if error["loc"] else "the document"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "greater_than_equal":
        wanted = f"at least {context['ge']}"
    elif kind == "literal_error":
        choices = context["expected"].replace(" or ", ", ")
        wanted = f"one of {choices.replace(chr(39), '')}" if "," in choices else choices
    elif kind == "value_error":
        wanted = str(context["error"])
    else:
        wanted = WANTED.get(kind, error["msg"].removeprefix("Input should be "))
    return f"{where} must be {wanted}, got {shortened(error['input'])}"
