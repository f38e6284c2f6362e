"""Memory of this machine: what is available, and what this process has freed but still holds."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # options of mallopt
LARGE_BLOCK = 200_000  # bytes; larger ones have pages of their own while a model is loaded
LARGEST_KEPT = 2**25  # bytes; glibc's own upper limit


def release_freed() -> None:
    """Return freed memory to the system, where the C library is glibc; elsewhere nothing happens.

    glibc keeps freed blocks of up to 32 MB. After an update these are gigabytes, of which sampling, with blocks of
    other sizes, uses little.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """A context in which freed blocks return to the system at once, where the C library is glibc.

    torch aligns its blocks, and glibc before 2.38 gives no freed aligned block to the next request of the same size. So
    layers that are gathered one after the other would take as much memory as all of them together. Afterwards the
    limits are the highest that glibc would have chosen itself: memory that is kept makes an update faster.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        set_option = None
    if set_option is None or "MALLOC_MMAP_THRESHOLD_" in os.environ:  # the user has chosen
        yield
        return
    set_option(MMAP_THRESHOLD, LARGE_BLOCK)
    try:
        yield
    finally:
        set_option(MMAP_THRESHOLD, LARGEST_KEPT)
        set_option(TRIM_THRESHOLD, 2 * LARGEST_KEPT)


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
