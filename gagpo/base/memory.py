"""Memory of this machine: what is available, and what this process has freed but still holds."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def release_freed() -> None:
    """Return freed memory to the system, where the C library is glibc; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB. After an update these are gigabytes, of which sampling, with blocks of
    other sizes, uses little.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> float:
    """Free memory in bytes, of the machine or its control group."""
    available = None
    with suppress(OSError):  # not on Linux
        available = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    if available:
        free = float(available[1]) * 1024
    else:
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    with suppress(OSError, ValueError):  # not there, or "max"
        free = min(free, float(MEMORY_LIMIT.read_text(encoding="ascii")))
    return free
