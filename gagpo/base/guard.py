"""Adopt and end orphaned processes, and limit the memory of a process.

A process may start others that leave its process group (``setsid``) or outlive it. On Linux a process can inherit the
orphans among its descendants and end them. Elsewhere only process groups are ended, and memory is not limited.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
_PATIENCE = 5.0  # seconds for killed processes to end: one in an uninterruptible wait must not block its owner
_MEGABYTE = 2**20


def adopt_orphans() -> bool:
    """Become the parent of orphans among this process's descendants; False if the system does not support it."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its ``parent`` ends; exit if it has ended already."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(megabytes: int) -> None:
    """Limit the private memory of this process, and of each it starts, to ``megabytes`` more than it has now.

    An allocation beyond the limit raises MemoryError. Shared memory does not count: loaded before the fork, or mapped.
    """
    with suppress(OSError, ValueError):  # where the system counts otherwise, or the hard limit is lower
        limit = private_memory() + megabytes * _MEGABYTE
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def private_memory() -> int:
    """Bytes of writable private memory that this process has reserved: what ``RLIMIT_DATA`` counts."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise OSError("this system does not report the memory of a process")


def resident_memory(process: int) -> int:
    """Bytes used by ``process`` and its living descendants, without mapped files and shared memory."""
    total, unseen = 0, [process]
    while unseen:
        process = unseen.pop()
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            total += (int(resident) - int(shared)) * resource.getpagesize()
            unseen += children(process)
    return total


def children(process: int) -> list[int]:
    """The ids of the child processes of ``process``, including zombies."""
    processes: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            processes += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
    return processes


def kill(process: int) -> None:
    """Kill a child process that was not yet reaped, and its group."""
    with suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)


def end(process: int) -> int:
    """Kill a child process that was not yet reaped, and its group; return its exit code, negative for a signal."""
    kill(process)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def end_strays(exempt: Collection[int]) -> None:
    """Kill and reap every child of this process except the ``exempt`` ones, and all that it inherits from them."""
    deadline = time.monotonic() + _PATIENCE
    while strays := set(children(os.getpid())).difference(exempt):
        for stray in strays:
            with suppress(OSError):
                os.kill(stray, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        if time.monotonic() > deadline:
            return
        time.sleep(0.001)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
