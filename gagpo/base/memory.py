"""Memory that was freed but is still held by the process."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def release_freed() -> None:
    """Return freed memory to the system, where the C library is glibc; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB. After an update these are gigabytes, of which sampling, with blocks of
    other sizes, uses little.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
