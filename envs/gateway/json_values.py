"""JSON that programs send, which is untrusted: bounded in depth and in number of values before it becomes objects."""

from __future__ import annotations

import itertools
import re
from typing import Any

from pydantic_core import from_json

MAX_DEPTH = 64  # of nested lists and objects; templates and the digests of messages read them recursively
MAX_VALUES = 200_000  # strings, lists, objects and commas

# Lists and objects take up to 25 times the memory of their text, so they are counted before they are made. A string
# may be unclosed: the pattern then takes the rest of the text, because trying again at every quote is quadratic.
_VALUES_OF_BYTES = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
_VALUES_OF_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)


class InvalidJson(ValueError):
    """Text that is not JSON."""


class JsonTooLarge(ValueError):
    """JSON that is nested too deeply or has too many values."""


def parse(text: str | bytes | bytearray, max_values: int = MAX_VALUES) -> Any:
    """The value that ``text`` contains.

    Lone surrogates, NaN and infinity are not JSON.

    Raises:
        InvalidJson: ``text`` is not JSON.
        JsonTooLarge: it has more than ``max_values`` values, or more than ``MAX_DEPTH`` nested levels.
    """
    if count_values(text, max_values) > max_values:
        raise JsonTooLarge(f"the limit is {MAX_VALUES:,} JSON values in a request")
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        if "recursion limit" in str(error):
            raise JsonTooLarge(f"the limit is {MAX_DEPTH} nested levels of JSON") from None
        raise InvalidJson(f"{str(error)[:100]!a}") from None
    _require_depth(value)
    return value


def count_values(text: str | bytes | bytearray, limit: int) -> int:
    """Number of strings, lists, objects and commas in ``text``, counted up to ``limit`` + 1."""
    if isinstance(text, str):
        at_most = sum(text.count(mark) for mark in '",[{')
    else:
        at_most = sum(text.count(mark) for mark in (b'"', b",", b"[", b"{"))
    if at_most <= limit:  # fast; a long text may contain more of them in its strings
        return at_most
    pattern: re.Pattern[Any] = _VALUES_OF_TEXT if isinstance(text, str) else _VALUES_OF_BYTES
    return sum(1 for _ in itertools.islice(pattern.finditer(text), limit + 1))


def _require_depth(value: Any) -> None:
    """Raise JsonTooLarge for a value with more than ``MAX_DEPTH`` levels; not recursive itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _parts(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise JsonTooLarge(f"the limit is {MAX_DEPTH} nested levels of JSON")


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
