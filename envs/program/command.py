"""Run a command to its end and keep the last part of what it writes."""

from __future__ import annotations

import functools
import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from gagpo.base import guard

MAX_OUTPUT = 64 << 10  # the last bytes of an output, which are kept
_CHUNK = 1 << 16
_LARGEST_PIPE = 1 << 20  # bytes that can be left in a pipe: /proc/sys/fs/pipe-max-size


@dataclass
class Tail:
    """The last bytes of a stream."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, chunk: bytes) -> None:
        self.data += chunk
        del self.data[:-MAX_OUTPUT]

    def __str__(self) -> str:
        return self.data.decode("utf-8", "replace")


def run(
    command: Sequence[str], descriptors: Sequence[int] = (), on_start: Callable[[], None] | None = None
) -> tuple[int, str, str]:
    """The exit status of a command (negative for a signal), and the end of its output and of its errors.

    Nothing goes to the disk, so a program cannot fill it with output. Processes that it started may write on after its
    end, and are not waited for.

    descriptors: of files that it inherits. on_start: called once it has started.

    Raises: OSError if it cannot be started.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=functools.partial(guard.die_with_parent, os.getpid()),
        pass_fds=descriptors,
    )
    if on_start is not None:
        on_start()
    assert child.stdout is not None and child.stderr is not None
    output = Tail()
    errors = Tail()
    with child.stdout as stdout, child.stderr as stderr:
        _read_until_the_end(child, {stdout: output, stderr: errors})
    return child.wait(), str(output), str(errors)


def _read_until_the_end(child: subprocess.Popen[bytes], streams: dict[IO[bytes], Tail]) -> None:
    """Read the streams until the child has ended.

    The end of the streams is no sign of it: processes that the child started may keep them open. So a thread waits for
    the child, and ends the loop through a pipe of its own.
    """
    child_ended, close_at_end = os.pipe()

    def watch() -> None:
        child.wait()
        os.close(close_at_end)

    threading.Thread(target=watch, name="end of the program", daemon=True).start()
    with selectors.DefaultSelector() as selector:
        selector.register(child_ended, selectors.EVENT_READ)
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, stream)
        is_running = True
        while is_running:
            # Without a deadline: at the episode's, the pool kills this whole process.
            for key, _ in selector.select():
                if key.data is None:
                    is_running = False
                elif not _read(key.data, streams[key.data], _CHUNK):
                    selector.unregister(key.data)
        os.close(child_ended)
        for stream in streams:  # what was written before the end
            _read(stream, streams[stream], _LARGEST_PIPE)


def _read(stream: IO[bytes], tail: Tail, max_bytes: int) -> bool:
    """Read up to about ``max_bytes`` of what is there; False at the end of the stream."""
    size = 0
    with suppress(BlockingIOError):
        while size < max_bytes:
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                return False
            tail.add(chunk)
            size += len(chunk)
    return True
