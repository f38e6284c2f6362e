"""Read a path that may hold something else than a file."""

from __future__ import annotations

import os
import stat
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
