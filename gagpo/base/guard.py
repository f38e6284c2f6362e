"""Adopt and end orphaned processes, and limit the memory of a process.

A process may start others that leave its process group (``setsid``) or outlive it. On Linux a process can inherit the
orphans among its descendants and end them. Elsewhere only process groups are ended, and memory is not limited.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
_PATIENCE = 5.0  # seconds for killed processes to end: one in an uninterruptible wait must not block its owner
_MEGABYTE = 2**20
_WORTH_READING = 1024  # kilobytes of shared memory
_MAPPING = re.compile(
    r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+)\s*(?P<path>.*)"
)


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

    An allocation beyond the limit raises MemoryError. Shared memory counts in :func:`resident_memory` only.
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


def resident_memory(process: int, files: dict[str, tuple[int, int]] | None = None) -> int:
    """Bytes used by ``process`` and its living descendants, without mapped files.

    Shared memory counts once: memfd, files in /dev/shm, System V and anonymous shared mappings, while a process has
    them open or mapped; of a sandbox, all of its /dev/shm and /tmp.

    files: those in /dev/shm that were seen before count until they are removed; it is updated.
    """
    total, unseen = 0, [process]
    shared: dict[tuple[int, int], int] = {}
    files = {} if files is None else files
    file_systems: dict[int, int] = {}
    while unseen:
        process = unseen.pop()
        with suppress(OSError, ValueError):
            _, resident, not_private, *_ = Path(f"/proc/{process}/statm").read_text().split()
            total += (int(resident) - int(not_private)) * resource.getpagesize()
            unseen += children(process)
            file_systems.update(_sandboxed_memory(process))
            for key, size in (*_open_memory(process, files), *_mapped_memory(process)):
                shared[key] = max(size, shared.get(key, 0))
    for path, key in list(files.items()):
        try:
            status = os.stat(path)
        except OSError:
            del files[path]
            continue
        if (status.st_dev, status.st_ino) == key:
            shared[key] = status.st_blocks * 512
    total += sum(size for (device, _), size in shared.items() if device not in file_systems)
    return total + sum(file_systems.values())


def _open_memory(process: int, files: dict[str, tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    """Device and inode of the shared memory that a process has open, and its bytes."""
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(("/memfd:", "/dev/shm/")):
                status = os.stat(f"{folder}/{name}")
                if target.startswith("/dev/shm/"):
                    files[target] = status.st_dev, status.st_ino
                yield (status.st_dev, status.st_ino), status.st_blocks * 512


def _sandboxed_memory(process: int) -> Iterator[tuple[int, int]]:
    """Device and used bytes of the file systems in memory that a sandbox has for itself; none outside of a sandbox."""
    root = f"/proc/{process}/root"
    # Files there have no path outside, so what a process leaves behind is only seen in the sum of the file system.
    if os.readlink(f"/proc/{process}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        return
    for folder in ("/dev/shm", "/tmp"):
        with suppress(OSError):
            device = os.stat(root + folder).st_dev
            usage = os.statvfs(root + folder)
            if device != os.stat(folder).st_dev:
                yield device, (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def _mapped_memory(process: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Device and inode of the shared memory that a process has mapped, and the bytes of it that it uses."""
    status = Path(f"/proc/{process}/status").read_text()
    used = re.search(r"RssShmem:\s+(\d+)", status)
    if used is None or int(used[1]) < _WORTH_READING:  # the table of mappings takes long to read
        return
    sizes: dict[tuple[int, int], int] = {}
    key = None
    for line in Path(f"/proc/{process}/smaps").read_text(errors="replace").splitlines():
        if mapping := _MAPPING.match(line):
            is_memory = mapping["path"].startswith(("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero"))
            device = os.makedev(int(mapping["major"], 16), int(mapping["minor"], 16))
            key = (device, int(mapping["inode"])) if is_memory else None
        elif key is not None and line.startswith("Rss:"):
            sizes[key] = sizes.get(key, 0) + int(line.split()[1]) * 1024
    yield from sizes.items()


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
