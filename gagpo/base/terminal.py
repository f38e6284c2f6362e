"""What is printed may hold text of models, programs, servers and files: a terminal must not obey it.

A terminal obeys escape sequences: they move its cursor, hide and overwrite lines, change its title, fill the clipboard.
Marks of text direction reorder what is read. :class:`CleanStream` stands in front of standard output and standard error
while a command runs, so that everything printed passes it: results, errors, warnings, logs, tracebacks.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of characters without a shape: controls, formats such as bidi marks, surrogates, separators."""

JOINERS = "\u200c\u200d"  # part and hold together letters of some scripts, and the parts of an emoji


def printable(text: str) -> str:
    """``text`` with backslash escapes for every character that a terminal may obey, apart from newlines and tabs.

    >>> print(printable("Zoë" + chr(27) + "[2J" + chr(13) + "gone" + chr(0x202E)))
    Zoë\\x1b[2J\\rgone\\u202e
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character in f"\n\t{JOINERS}" or unicodedata.category(character) not in OBEYED:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


class CleanStream:
    """A text stream that passes only :func:`printable` text on, in the characters that its encoding has.

    It says that it is no terminal, so libraries that colour their output or draw on a terminal print plain lines.

    raw: the stream behind it. Only text that is free of escapes, or whose escapes are our own, may be written to it.
    """

    def __init__(self, raw: TextIO):
        self.raw = raw

    def write(self, text: str) -> int:
        """Write ``text``; returns its length."""
        encoding = getattr(self.raw, "encoding", None) or "utf-8"
        self.raw.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write every line."""
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        """False."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw(stream: TextIO) -> TextIO:
    """The stream behind a :class:`CleanStream`, or the stream itself."""
    return stream.raw if isinstance(stream, CleanStream) else stream


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads the stream on a terminal."""
    return raw(stream).isatty()


def fill_streams() -> None:
    """Put ``os.devnull`` in the place of standard streams that were closed before the program began (``>&-``).

    Otherwise they are None, and the next file that is opened gets their number: children would write into it.
    """
    for name in ("stdin", "stdout", "stderr"):  # in the order of their numbers, as a new file gets the lowest free one
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)  # as standard streams are
            setattr(sys, name, stream)


@contextmanager
def cleaned() -> Iterator[None]:
    """Put a :class:`CleanStream` in front of standard output and standard error."""
    before = sys.stdout, sys.stderr
    # A stream is None in a program without a console.
    sys.stdout, sys.stderr = (CleanStream(raw(stream)) if stream else stream for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
