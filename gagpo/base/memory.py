"""Memory of this machine: what is available, and what this process has freed but still holds."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def release_freed() -> None:
    """Return freed memory to the system, where the C library is glibc; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB. After an update these are gigabytes, of which sampling, with blocks of
    other sizes, uses little.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> float:
    """Bytes that new processes can use without swapping, on this machine and within its control group."""
    available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    with suppress(OSError, ValueError, IndexError):  # counts caches that can be freed; not there but on Linux
        for line in MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024.0
    with suppress(OSError, ValueError):  # no control group, or no limit ("max")
        limit = int((CONTROL_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((CONTROL_GROUP / "memory.current").read_text(encoding="ascii"))
        available = min(available, float(max(0, limit - used + _reclaimable())))
    return available


def _reclaimable() -> int:
    """Bytes of file caches that count as used in the control group, but are freed when memory is needed."""
    with suppress(OSError, ValueError, IndexError):
        for line in (CONTROL_GROUP / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0
