"""What the processes of a pool write to standard output and error: bounded, and each line shown once.

Every worker prints the banners and warnings of its libraries, so unfiltered output would flood the terminal. A process
must not wait until its output is read, so it is read to the end even where nothing more is shown.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gagpo.base.once import is_new
from gagpo.base.terminal import printable

MAX_LINES = 20  # shown of a pool
MAX_CHARACTERS = 300  # of a line
MAX_READ = 1 << 20  # bytes that are searched for new lines
_CHUNK = 1 << 16
_FINISH_SECONDS = 1.0  # for the last lines to arrive; a process that outlives its pool may keep the pipe open


class CapturedOutput:
    """The output of the processes that inherit its descriptor.

    name: of the environment, before each line.
    """

    def __init__(self, name: str):
        self.name = name
        self._reader: threading.Thread | None = None
        self._lines = 0

    @contextmanager
    def receiving(self) -> Iterator[int]:
        """A descriptor to start a process with. A daemon thread reads until all processes have closed it."""
        reading, writing = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(reading,), name=f"output of {self.name}", daemon=True)
        self._reader.start()
        try:
            yield writing
        finally:
            os.close(writing)  # this process's copy: the thread ends with the last process that has one

    def finish(self) -> None:
        """Wait a moment for the last lines, once the processes have ended."""
        if self._reader is not None:
            self._reader.join(_FINISH_SECONDS)

    def _read(self, descriptor: int) -> None:
        incomplete = b""  # the beginning of a line whose end has not arrived
        num_bytes = 0
        try:
            while chunk := os.read(descriptor, _CHUNK):
                if num_bytes > MAX_READ or self._lines > MAX_LINES:
                    continue  # keep reading: a full pipe would block the workers
                num_bytes += len(chunk)
                *lines, incomplete = (incomplete + chunk).split(b"\n")
                self._show(lines)
                if len(incomplete) > _CHUNK:
                    self._show([incomplete])
                    incomplete = b""
            self._show([incomplete])
        finally:
            os.close(descriptor)

    def _show(self, lines: list[bytes]) -> None:
        for data in lines:
            text = data[: 4 * MAX_CHARACTERS].decode(errors="replace")
            line = printable(text.replace("\r", " ").replace("\t", " ")).strip()
            if not line or self._lines > MAX_LINES or not is_new(line):
                continue
            self._lines += 1
            if self._lines > MAX_LINES:
                line = "further output is not shown"
            print(f"{self.name}: {line[:MAX_CHARACTERS]}", file=sys.stderr, flush=True)
