"""Work that one process at a time may do."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)


def alone(file: Path, seconds: float, doing: str) -> AbstractContextManager[object]:
    """Hold the lock ``file``; the system releases that of a killed process. Logs a warning when it has to wait.

    doing: what another holder is doing, such as ``unpacking FOLDER``.

    Raises: TimeoutError after ``seconds``.
    """
    lock = FileLock(file)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log.warning("waiting for another process that is %s", doing)
    try:
        return lock.acquire(seconds)
    except Timeout:
        raise TimeoutError(f"another process has been {doing} for {seconds:g} s: end it") from None
