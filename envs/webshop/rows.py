"""Reads large JSON files row by row, in bounded memory, with errors that name the file and the row.

The full product file has more than a million rows in one JSON list. Parsing it whole would take several times its size
in memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path

from gagpo.base.errors import GagpoError

CHUNK = 1 << 20
MAX_ROW = 64 << 20  # characters; a longer row means a broken file

_BLANK = re.compile(r"[ \t\r\n]*")
_AFTER_VALUE = frozenset(" \t\r\n,:]}")
_SHAPES = {"[": "a list", "{": "an object", '"': "a string"}


class CatalogueError(GagpoError, ValueError):
    """A data file cannot be used; the message names the file, the row and what was expected."""


def iterate_list(path: Path, expected: str) -> Iterator[tuple[int, object]]:
    """Yield ``(row, value)`` of a JSON list, rows counted from 1; ``expected`` describes the content, for errors.

    Raises:
        CatalogueError: the file is missing or unreadable, has another shape, bad UTF-8 or broken JSON.
    """
    reader = _RowReader(path, expected)
    reader.open("[")
    row = 0
    while not reader.closes("]", first=row == 0):
        row += 1
        yield row, reader.value(row)


def iterate_object(path: Path, expected: str) -> Iterator[tuple[int, str, object]]:
    """Yield ``(row, key, value)`` of a JSON object, rows counted from 1; errors as in :func:`iterate_list`."""
    reader = _RowReader(path, expected)
    reader.open("{")
    row = 0
    while not reader.closes("}", first=row == 0):
        row += 1
        key = reader.value(row)
        if not isinstance(key, str) or reader.peek() != ":":
            raise CatalogueError("broken JSON, expected a key and a colon", where=f"{path}, row {row}")
        reader.position += 1
        yield row, key, reader.value(row)


class _RowReader:
    def __init__(self, path: Path, expected: str):
        self.path = path
        self.expected = expected
        self.buffer = ""
        self.position = 0
        self.ended = False
        self.row = 0
        self._bytes = 0
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CatalogueError(
                f"cannot be read ({error.strerror})", where=path, advice=f"expected {expected}"
            ) from None

    def open(self, bracket: str) -> None:
        first = self.peek()
        if first != bracket:
            content = _SHAPES.get(first, "something else") if first else "nothing"
            raise CatalogueError(
                f"expected {self.expected} ({_SHAPES[bracket]}), found {content}",
                where=self.path,
                advice="were two files mixed up?",
            )
        self.position += 1

    def closes(self, bracket: str, first: bool) -> bool:
        """Whether the collection ends here; if not, move to the next row."""
        character = self.peek()
        if character == bracket:
            self.position += 1
            if self.peek():
                raise CatalogueError(
                    f"text after the closing {bracket!r}", where=self.path, advice="the file is damaged"
                )
            self._file.close()
            return True
        if not character:
            raise CatalogueError(f"ends after row {self.row}", where=self.path, advice="the file is truncated")
        if not first:
            if character != ",":
                raise CatalogueError(f"broken JSON after row {self.row}, expected a comma", where=self.path)
            self.position += 1
        return False

    def peek(self) -> str:
        """The next character that is not white space, or '' at the end of the file."""
        while True:
            self.position = _BLANK.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if self.ended:
                return ""
            self._more(CHUNK)

    def value(self, row: int) -> object:
        self.row = row
        self.peek()
        size = CHUNK
        while True:
            reason = "unterminated value"
            try:
                value, end = self._parse(self.buffer, self.position)
            except RecursionError:
                raise CatalogueError("nested too deeply", where=f"{self.path}, row {row}") from None
            except ValueError as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:120]
                complete = False
            else:
                # A value at the end of the buffer may continue in the next chunk, such as "0" before ".".
                complete = self.ended or (end < len(self.buffer) and self.buffer[end] in _AFTER_VALUE)
            if complete:
                self.position = end
                return value
            if self.ended or len(self.buffer) - self.position > MAX_ROW:
                raise CatalogueError(f"broken JSON ({reason})", where=f"{self.path}, row {row}")
            self._more(size)
            size *= 2  # a long row is parsed again after every read; doubling keeps the total linear in its length

    def _more(self, size: int) -> None:
        data = self._file.read(size)
        self.ended = not data
        try:
            text = self._decode(data, final=self.ended)
        except UnicodeDecodeError as error:
            byte = self._bytes + error.start
            raise CatalogueError(
                f"not UTF-8 (near byte {byte})",
                where=f"{self.path}, after row {self.row}",
                advice="save the file as UTF-8",
            ) from None
        self._bytes += len(data)
        self.buffer = self.buffer[self.position :] + text
        self.position = 0
