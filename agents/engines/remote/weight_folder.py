"""Where weights pass to servers: a folder in memory, or on a disk if memory has no room.

Files in ``/dev/shm`` are memory, so a killed trainer must not leave them there for good. A folder is locked while its
process runs, and the system releases the lock however the process ends. The next run on the machine removes the folders
that no process has locked. Process ids would not do: containers that share ``/dev/shm`` have separate ones.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from gagpo.base.errors import InvalidArgument
from gagpo.base.memory import available_memory

LOG = logging.getLogger("gagpo")

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "gagpo-weights-"
LOCK = "lock"
HEADROOM = 2**30
"""Bytes that stay free in shared memory, for NCCL and for the workers of vLLM and torch."""

GB = 1e9


def parent_of_files(size: int) -> Path:
    """``/dev/shm`` if it has room for ``size`` bytes, else the folder of temporary files.

    Raises: InvalidArgument if neither has room.
    """
    free_memory = 0.0
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        free_memory = min(shutil.disk_usage(SHARED_MEMORY).free, available_memory())
    if free_memory >= size + HEADROOM:
        return SHARED_MEMORY
    temporary = Path(tempfile.gettempdir())
    free_disk = shutil.disk_usage(temporary).free
    room = f"{SHARED_MEMORY} has {free_memory / GB:.1f} GB free"
    if free_disk < size:
        raise InvalidArgument(
            f"the weights for the servers take {size / GB:.1f} GB: {room} and {temporary} {free_disk / GB:.1f} GB",
            advice=("set engine.options.folder to a folder with room"),
        )
    LOG.warning(
        "weights pass to the servers through %s, which is slower than memory: %s, and %.1f GB are needed",
        temporary,
        room,
        (size + HEADROOM) / GB,
    )
    return temporary


class WeightFolder:
    """A folder for the files of one process, removed by :meth:`close`.

    readable: whether servers of other users may read it, as those on other machines may be.
    path: the folder.
    """

    def __init__(self, parent: Path, readable: bool = False):
        parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(parent)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        unlocked.chmod(0o755 if readable else 0o700)
        self._lock: int | None = None
        with suppress(OSError):  # some network file systems have no locks; nobody removes such a folder
            self._lock = _locked(unlocked / LOCK)
        # Only a folder that is locked already gets the name that others look for.
        self.path = parent / unlocked.name.removeprefix(".")
        unlocked.rename(self.path)

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that were killed; those of other users stay."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = _locked(folder / LOCK)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(file: Path) -> int | None:
    """Hold the lock ``file`` until the returned handle is closed; None if another process holds it."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return handle
