"""Scratch folders of programs: one for each run, removed with everything in it."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gagpo.base.removal import remove

TASK_FILE = "task.json"


class Scratch:
    """A folder with a subfolder for each run.

    place: the folder.
    """

    def __init__(self) -> None:
        self.place = tempfile.mkdtemp(prefix="gagpo-programs-")
        # In a separate thread: a program may leave so many files that removing them would delay other episodes.
        self._remover = ThreadPoolExecutor(1, "scratch folders")

    def add(self, number: int, task: str) -> tuple[str, str]:
        """Create the folder of the run of this number, and a file in it with its task; returns the paths of both.

        Raises: OSError if they cannot be created.
        """
        folder = self._folder(number)
        os.makedirs(folder, 0o700)
        path = os.path.join(folder, TASK_FILE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(task)
        return folder, path

    def drop(self, number: int) -> None:
        """Remove the folder of a run, without waiting for it; does nothing if it does not exist."""
        with suppress(RuntimeError):  # the pool was closed meanwhile, which removes all folders
            self._remover.submit(_discard, self._folder(number))

    def close(self) -> None:
        """Remove everything; idempotent."""
        self._remover.shutdown(cancel_futures=True)
        remove(self.place)

    def _folder(self, number: int) -> str:
        return os.path.join(self.place, str(number))


def _discard(folder: str) -> None:
    """Remove the folder of a run. If the program wrote nothing, this takes two calls instead of another process."""
    try:
        os.unlink(os.path.join(folder, TASK_FILE))
        os.rmdir(folder)
    except OSError:
        remove(folder)
