"""Errors of the disk while safetensors writes, which has an error class of its own for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise an OSError that names ``path`` where a file of weights cannot be written, for example on a full disk."""
    from safetensors import SafetensorError  # not needed to answer a mistake on the command line

    try:
        yield
    except SafetensorError as error:
        number = _NUMBER.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
