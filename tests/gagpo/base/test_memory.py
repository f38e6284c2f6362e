"""Freed memory goes back to the system."""

import re
from pathlib import Path

import numpy as np

from gagpo.base.memory import release_freed


def held() -> float:
    """Megabytes of memory of this process."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1e3


def test_what_small_blocks_leave_behind_is_returned():
    blocks = [np.ones(100_000, np.uint8) for _ in range(4000)]
    blocks = blocks[::50]  # these keep the heap from shrinking
    before = held()
    release_freed()
    assert before - held() > 250 and len(blocks) == 80
