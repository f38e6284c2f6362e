"""Reading JSON that somebody else may have written: every value is checked, every complaint names file and key."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gagpo.envs.errors import GagpoError


class BadResult(GagpoError, ValueError):
    """A file that cannot be used; the one-line message names the file and the key."""


class Field:
    """One value of a JSON document, with the path that leads to it.

    >>> document = parse('{"panel": {"tasks": "ten"}}', "after.json")
    >>> document["panel"]["tasks"].integer()
    Traceback (most recent call last):
    gagpo.eval.reading.BadResult: after.json: key 'panel.tasks' must be a whole number, got 'ten'
    """

    def __init__(self, name: str, key: str, value: Any):
        self.name, self.key, self.value = name, key, value

    def __getitem__(self, key: str) -> Field:
        record = self.record()
        path = f"{self.key}.{key}" if self.key else key
        if key not in record:
            raise BadResult(f"{self.name}: key {path!r} is missing")
        return Field(self.name, path, record[key])

    def record(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def items(self) -> Iterator[Field]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for number, value in enumerate(self.value):
            yield Field(self.name, f"{self.key}[{number}]", value)

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def integer(self, low: int = 0) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.wrong("a whole number")
        if self.value < low:
            raise self.wrong(f"at least {low}")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("a number")
        try:
            number = float(self.value)
        except OverflowError:
            raise self.wrong("a number of ordinary size") from None
        if not math.isfinite(number):
            raise self.wrong("a finite number")
        return number

    def wrong(self, wanted: str) -> BadResult:
        """The error that says what should have stood here."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        where = f"key {self.key!r}" if self.key else "the document"
        return BadResult(f"{self.name}: {where} must be {wanted}, got {shown}")


def parse(text: str, name: str) -> Field:
    """The document as a :class:`Field`; :class:`BadResult` when the text is not JSON."""
    try:
        return Field(name, "", json.loads(text))
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
