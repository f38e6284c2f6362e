"""The cores that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """Cores that this process may use, by its affinity and its control group where the system has them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # not there, or "max"
        quota, period = map(int, CPU_LIMIT.read_text(encoding="ascii").split())
        cores = max(1, min(cores, quota // period))
    return cores
