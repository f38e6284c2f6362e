"""Memory of this machine: what is available, and what this process holds although it has freed it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")


def release_freed() -> None:
    """Return freed memory to the system, where the C library is glibc; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB. After an update these are gigabytes, of which sampling, with blocks of
    other sizes, uses little.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> float | None:
    """Bytes that new processes can use without swapping, within the limit of the control group; None if unknown."""
    available: float | None = None
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024.0
    with suppress(OSError, ValueError):  # no such limit ("max")
        limit = int((CONTROL_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((CONTROL_GROUP / "memory.current").read_text(encoding="ascii"))
        cached = _reclaimable()
        within_group = float(max(0, limit - used + cached))
        available = within_group if available is None else min(available, within_group)
    return available


def _reclaimable() -> int:
    """Bytes of file caches that count as used in the control group, but are freed when memory is needed."""
    with suppress(OSError, ValueError, IndexError):
        for line in (CONTROL_GROUP / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0
