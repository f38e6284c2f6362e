"""Read JSON files of unknown origin: every value is validated, and errors name file and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.options import UNKNOWN, in_words, written
from gagpo.base.regular_file import read_bytes


class BadResult(GagpoError, ValueError):
    """A file that cannot be used; the message is one line with file and key."""


class Document(BaseModel):
    """A JSON object with typed keys. Types are strict and numbers finite; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


T = TypeVar("T")


def read_as(kind: type[T], text: str, name: str) -> T:
    """The text as a value of a type; :class:`BadResult` names the file and the first wrong key.

    >>> class Panel(Document):
    ...     tasks: int
    >>> read_as(Panel, '{"tasks": "ten"}', "after.json")
    Traceback (most recent call last):
    gagpo.runs.reading.BadResult: after.json: key 'tasks' must be an integer, got 'ten'
    """
    return validated(kind, parse(text, name), name)


def validated(kind: type[T], document: object, name: str) -> T:
    """The document as a value of a type (a model or a dataclass of pydantic)."""
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadResult(_complaint(first), key=key_path(first["loc"]) or None, where=name) from None
    except OverflowError:
        raise BadResult("an integer is too large", where=name) from None


@contextmanager
def in_one_line() -> Iterator[None]:
    """Convert pydantic's errors in the body to an InvalidArgument of one line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        validator_error = first.get("ctx", {}).get("error")  # a complete sentence of this package's validators
        if isinstance(validator_error, InvalidArgument):
            raise validator_error from None
        raise InvalidArgument(_complaint(first), key=key_path(first["loc"]) or None) from None


def parse(text: str, name: str) -> object:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise BadResult("nested too deeply", where=name) from None
    except ValueError as error:
        raise BadResult(f"not JSON ({error})", where=name) from None


def read_text(path: Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise BadResult(f"not UTF-8 text ({error.reason} at byte {error.start})", where=path) from None
    except OSError as error:
        raise BadResult(f"cannot be read ({error.strerror})", where=path) from None


def key_path(location: tuple[int | str, ...]) -> str:
    """``("tasks", 0, "tries")`` as ``tasks[0].tries``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in written(location)).removeprefix(".")


def shortened(value: object, length: int = 60) -> str:
    """A value in at most ``length`` characters, for an error message."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def _complaint(error: ErrorDetails) -> str:
    """One line for one of pydantic's errors; our validators raise ValueError with the expected value."""
    where = f"key {key_path(error['loc'])!r}" if error["loc"] else "the document"
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] in UNKNOWN:
        return f"{where} is unknown"
    requirement = in_words(error["msg"]).removeprefix("must be ")
    return f"{where} must be {requirement}, got {shortened(error['input'])}"
