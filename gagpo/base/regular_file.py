"""Read a path that may hold something else than a file."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def open_bytes(path: Path) -> BinaryIO:
    """Open a regular file to read it; OSError for anything else: reading a pipe or a device may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK opening a pipe waits for a writer
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise OSError(None, "not a regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file; OSError for anything else."""
    with open_bytes(path) as file:
        return file.read()


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of every line that is not blank, without a byte order mark; OSError as above.

    For files with a JSON value per line, whose strings may contain U+2028, U+2029 and U+0085: ``str.splitlines`` would
    end a line there, ``bytes.splitlines`` ends it at line feeds and carriage returns only.
    """
    lines = read_bytes(path).removeprefix(codecs.BOM_UTF8).splitlines()
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())
