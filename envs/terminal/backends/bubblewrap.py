"""Sandboxes made by bubblewrap: namespaces of the kernel, without images and without a service.

A sandbox is made once and used for many episodes: what takes long are the namespaces of users and networks, and those
hold nothing of an episode. The supervisor inside makes the others anew for each shell.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gagpo.base.child import Pipe
from gagpo.base.sandbox import (
    NAMESPACES,
    PACKAGE,
    MemoryFile,
    SandboxUnavailable,
    program,
    require_program,
    unavailable_reason,
)
from gagpo.envs.terminal.backends.base import (
    VARIABLES,
    WORKING_FOLDER,
    BadTree,
    CommandResult,
    EpisodeLimits,
    SandboxLost,
    Saved,
    Stream,
)
from gagpo.envs.terminal.tree import Node, Tree, from_wire, to_wire

START_SECONDS = 20.0
GRACE_SECONDS = 10.0  # beyond a command's own limit, for a busy machine
NOBODY = 65534  # a user without rights: limits on the number of processes do not bind root
CAPABILITIES = ("SYS_ADMIN", "SYS_PTRACE", "SYS_RESOURCE", "SETPCAP", "DAC_OVERRIDE", "FOWNER", "KILL")
"""Of the supervisor, in its own namespaces only; the shell has none."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ROOT_FOLDERS = ("app", "episode", "tests", "logs", "home/user", "tmp", "dev/shm")
REGIONS = ("app", "home", "tmp", "shm", "logs")
PASSWD = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n"
GROUP = "root:x:0:\nuser:x:1000:\n"


@functools.cache
def supervisor_source() -> str:
    return (Path(__file__).parent / "supervisor.py").read_text(encoding="utf-8")


SYSTEM_PYTHON = "/usr/bin/python3"


def python_folder() -> str:
    """The folder of this interpreter's files where the system has no Python, else empty."""
    return "" if os.access(SYSTEM_PYTHON, os.X_OK) else os.path.realpath(sys.base_prefix)


def interpreter() -> str:
    """The interpreter of the supervisor and of the tasks: the system's, or this one without a virtual environment."""
    if not python_folder():
        return SYSTEM_PYTHON
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def hidden_folders() -> list[str]:
    """Folders that would be visible but contain this package: its tasks hold their solutions.

    In a checkout the environments stand beside the package, and only a link in it leads to them.
    """
    environments = Path(__file__).resolve().parents[2]
    packages = [PACKAGE] if environments.is_relative_to(PACKAGE) else [PACKAGE, environments]
    visible = [Path("/usr"), *map(Path, filter(None, [python_folder()]))]
    return [str(path) for path in packages if any(folder in path.parents for folder in visible)]


def arguments(connection: int, texts: Mapping[str, int]) -> list[str]:
    """The command line of a sandbox.

    connection: descriptor of the supervisor's socket.
    texts: descriptors of files to make, by path.
    """
    # With its path: a user who may not run it must not get another one of that name.
    line = [program() or "bwrap", *NAMESPACES, "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    line += ["--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        line += ["--cap-add", f"CAP_{capability}"]
    line += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            line += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            line += ["--ro-bind", f"/{name}", f"/{name}"]
    if python_folder():
        line += ["--ro-bind", python_folder(), python_folder()]
    for folder in hidden_folders():
        line += ["--tmpfs", folder, "--remount-ro", folder]
    line += ["--perms", "0755", "--dir", "/etc"]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        line += ["--ro-bind-try", path, path]
    for path, number in texts.items():
        line += ["--perms", "0444", "--ro-bind-data", str(number), path]
    line += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
    # Not --dev: its terminals need a second namespace of users, in which file systems cannot be mounted.
    for device in DEVICES:
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        line += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    line += ["--symlink", "/proc/self/fd", "/dev/fd"]
    for folder in ROOT_FOLDERS:
        line += ["--perms", "0755", "--dir", f"/{folder}"]
    line += ["--remount-ro", "/", "--clearenv", "--chdir", "/", "--"]
    return [*line, interpreter(), "-I", "-S", "-B", "-c", supervisor_source(), str(connection), str(connection), ""]


class SandboxProcess:
    """A running supervisor: the process that contains it, and the connection.

    command: makes the command line from the descriptor of the supervisor's socket.
    explain: makes the error of a process that ended at once from what it printed.
    """

    def __init__(self, command: Callable[[int], list[str]], explain: Callable[[str], str], **options: Any):
        self._owner = os.getpid()
        parent_end, child_end = socket.socketpair()
        options["pass_fds"] = [child_end.fileno(), *options.get("pass_fds", ())]
        with child_end:
            if options.pop("by_standard_streams", False):
                options |= {"stdin": child_end, "stdout": child_end}
            else:
                options |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            try:
                self._process = subprocess.Popen(
                    command(child_end.fileno()), stderr=subprocess.PIPE, start_new_session=True, cwd="/", **options
                )
            except OSError as error:
                parent_end.close()
                raise SandboxUnavailable(explain(str(error))) from None
        self.pipe = Pipe(parent_end)
        # No --die-with-parent: it ends the sandbox with the thread that made it. The supervisor ends with its socket.
        self.finalizer = weakref.finalize(self, _end, self._owner, self._process, self.pipe)
        try:
            self.pipe.receive(START_SECONDS)
        except (EOFError, OSError):
            errors = self._errors()
            self.finalizer()
            raise SandboxUnavailable(explain(errors)) from None

    def _errors(self) -> str:
        assert self._process.stderr is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        os.set_blocking(self._process.stderr.fileno(), False)
        return (self._process.stderr.read(4000) or b"").decode("utf-8", "replace")

    @property
    def id(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it runs, and this process is not a fork of the one that made it."""
        return os.getpid() == self._owner and self._process.poll() is None


def _end(owner: int, process: subprocess.Popen[bytes], pipe: Pipe) -> None:
    pipe.close()
    if os.getpid() != owner:
        return
    if process.stderr is not None:
        process.stderr.close()
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5.0)


_USERS: list[int | None] = []
"""The user as which sandboxes can be made, once it is known."""


def _make() -> SandboxProcess:
    """Make a sandbox: as a user without rights if this process is root's, where that is possible.

    Raises SandboxUnavailable.
    """
    require_program()
    candidates = list(_USERS) or ([NOBODY, None] if os.geteuid() == 0 else [None])
    for user in candidates:
        changed_user: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with MemoryFile(PASSWD.encode()) as passwd, MemoryFile(GROUP.encode()) as group:
            texts = {"/etc/passwd": passwd.fileno(), "/etc/group": group.fileno()}
            command = functools.partial(arguments, texts=texts)
            try:
                process = SandboxProcess(command, unavailable_reason, pass_fds=list(texts.values()), **changed_user)
            except SandboxUnavailable:
                if user == candidates[-1]:
                    raise
                continue
        _USERS[:] = [user]
        return process
    raise AssertionError("the last candidate raises")


class BubblewrapSandbox:
    """A sandbox of bubblewrap; made by the first ``start`` and used again by the next ones."""

    def __init__(self, limits: EpisodeLimits | None = None, max_output: int = 4000):
        self.limits = limits or EpisodeLimits()
        self.max_output = max_output
        self._process: SandboxProcess | None = None
        self._directory = WORKING_FOLDER

    def start(self, tree: Tree, mounts: Mapping[str, Tree] | None = None, directory: str = WORKING_FOLDER) -> str:
        entries = to_wire(tree)
        for target, content in (mounts or {}).items():
            entries += to_wire(content, target.strip("/"))
        return self._start(entries, directory, b"", tuple(mounts or {}))

    def run(self, command: str, seconds: float) -> CommandResult:
        answer = self._ask(
            ("run", command.encode("utf-8", "surrogateescape"), seconds, self.max_output), seconds + GRACE_SECONDS
        )
        status, output, errors, *values = answer
        self._directory = values[0]
        return CommandResult(status, Stream(*output), Stream(*errors), *values)

    def files(self, folder: str = WORKING_FOLDER) -> dict[str, Node]:
        return from_wire(self._ask(("tree",), GRACE_SECONDS + START_SECONDS), folder.strip("/"))

    def kill(self) -> list[str]:
        lines = self._ask(("kill",), GRACE_SECONDS)
        return [line.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace") for line in lines]

    def save(self) -> Saved:
        entries = self._ask(("tree",), GRACE_SECONDS + START_SECONDS)
        return Saved(entries, self._ask(("variables",), GRACE_SECONDS), self._directory)

    def restore(self, saved: Saved) -> str:
        return self._start(list(saved.entries), saved.directory, saved.variables, ())

    @property
    def process(self) -> int:
        """The id of the process that contains the sandbox; 0 before the first ``start``."""
        return self._process.id if self._process is not None else 0

    def close(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            process.finalizer()

    def make_process(self) -> SandboxProcess:
        """Start another supervisor; raises SandboxUnavailable."""
        return _make()

    def _start(self, entries: list[Any], directory: str, variables: bytes, read_only: tuple[str, ...]) -> str:
        if self._process is None or not self._process.usable:
            self.close()
            self._process = self.make_process()
        options = {
            "limits": self.limits.plain(),
            "read_only": [place.strip("/") for place in read_only],
            "directory": directory,
            "restore": variables,
        }
        python = python_folder()
        path = VARIABLES["PATH"] + (f":{python}/bin" if python else "")
        self._directory = directory
        return str(self._ask(("start", entries, options, {**VARIABLES, "PATH": path}), START_SECONDS))

    def _ask(self, order: tuple[Any, ...], seconds: float) -> Any:
        process = self._process
        if process is None or not process.usable:
            raise SandboxLost("the sandbox ended")
        try:
            process.pipe.send(order, seconds)
            status, answer = process.pipe.receive(seconds)
        except (EOFError, OSError) as error:
            self.close()
            late = isinstance(error, TimeoutError)
            raise SandboxLost("the sandbox did not answer in time" if late else "the sandbox ended") from None
        except BaseException:  # after an interrupt, a late answer must not answer the next order
            self.close()
            raise
        if status == "error":
            raise BadTree(str(answer))
        return answer
