"""Run a command to its end and keep the last part of what it writes."""

from __future__ import annotations

import functools
import os
import selectors
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from gagpo.base import guard

MAX_OUTPUT = 64 << 10  # bytes of an output that are kept, the last ones
_CHUNK = 1 << 16
_LARGEST_PIPE = 1 << 20  # bytes that can be left in a pipe: /proc/sys/fs/pipe-max-size


@dataclass
class Tail:
    """The last bytes of a stream."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, part: bytes) -> None:
        self.data += part
        del self.data[:-MAX_OUTPUT]

    def __str__(self) -> str:
        return self.data.decode("utf-8", "replace")


def run(command: Sequence[str]) -> tuple[int, str, str]:
    """The exit status of a command (negative for a signal), and the end of its output and of its errors.

    Nothing goes to the disk, so a program cannot fill it with output. What it started may write on after its end, and
    is not waited for. OSError if it cannot be started.
    """
    alive = functools.partial(guard.die_with_parent, os.getpid())
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    child = subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe, preexec_fn=alive)
    assert child.stdout is not None and child.stderr is not None
    output, errors = Tail(), Tail()
    with child.stdout as stdout, child.stderr as stderr:
        _read_until_the_end(child, {stdout: output, stderr: errors})
    return child.wait(), str(output), str(errors)


def _read_until_the_end(child: subprocess.Popen[bytes], streams: dict[IO[bytes], Tail]) -> None:
    """Read the streams until the child has ended: others may hold them open, so their end is not waited for."""
    ended, at_end = os.pipe()

    def watch() -> None:  # waits for the child, and unblocks the loop below by closing its end of the pipe
        child.wait()
        os.close(at_end)

    threading.Thread(target=watch, name="end of the program", daemon=True).start()
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, stream)
        running = True
        while running:
            for key, _ in selector.select():  # without a deadline: the pool kills this process at the episode's
                if key.data is None:
                    running = False
                elif not _read(key.data, streams[key.data], _CHUNK):
                    selector.unregister(key.data)
        os.close(ended)
        for stream in streams:  # what was written before the end
            _read(stream, streams[stream], _LARGEST_PIPE)


def _read(stream: IO[bytes], tail: Tail, most: int) -> bool:
    """Read up to about ``most`` bytes of what is there; False at the end of the stream."""
    size = 0
    with suppress(BlockingIOError):
        while size < most:
            part = os.read(stream.fileno(), _CHUNK)
            if not part:
                return False
            tail.add(part)
            size += len(part)
    return True
