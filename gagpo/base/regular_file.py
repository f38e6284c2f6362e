"""Read a path that may hold something else than a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file; OSError for anything else: reading a pipe or a device may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(None, "not a regular file", str(path))
        return file.read()
