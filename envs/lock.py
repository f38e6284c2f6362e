"""One process at a time: a lock file that the system frees when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path, patience: float, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; ``on_wait`` is called once if another process has it now.

    Raises TimeoutError after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path}: another process has held this lock for {patience:.0f} s") from None
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                time.sleep(0.05)
        yield
