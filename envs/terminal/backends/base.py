"""The interface of backends: a sandbox in which the commands of an episode run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gagpo.base.errors import GagpoError
from gagpo.envs.terminal.tree import Node, Tree

WORKING_FOLDER = "/app"
"""Where the tree of a task lies."""

VARIABLES = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/user",
    "USER": "user",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Equal commits get equal names, so that equal states have equal keys.
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@localhost",
    "GIT_AUTHOR_DATE": "2024-01-15T12:00:00Z",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@localhost",
    "GIT_COMMITTER_DATE": "2024-01-15T12:00:00Z",
}
"""The environment variables of a shell."""


class SandboxLost(GagpoError, RuntimeError):
    """The sandbox ended, or did not answer in time. The next ``start`` makes another."""


class BadTree(GagpoError, ValueError):
    """The files of an episode are too many or too large to read."""


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of an episode. Those of sizes are in bytes.

    memory: resident memory of all processes together, looked at 20 times a second.
    address_space, cpu_seconds, file_size: of each process, kept by the kernel.
    processes: at once.
    disk, files: of the tree, ``/tmp``, the home folder and ``/dev/shm`` together.
    """

    memory: int = 256 << 20
    address_space: int = 1 << 30
    cpu_seconds: int = 30
    file_size: int = 32 << 20
    processes: int = 64
    disk: int = 64 << 20
    files: int = 10_000

    def plain(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Stream:
    """What a command printed: the first and the last bytes, and the size of all."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    def text(self) -> str:
        """The text, with a line that says what was cut."""
        cut = self.size - len(self.head) - len(self.tail)
        head = self.head.decode("utf-8", "replace")
        if not cut:
            return head
        return f"{head}\n[{cut} of {self.size} bytes cut]\n{self.tail.decode('utf-8', 'replace')}"


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    status: its exit status; 124 if it was stopped.
    directory: the working directory after it.
    state: key of the state: files, directory, variables and running processes.
    changes: the files that it changed, such as ``+ app/a.txt``.
    restarted: the shell ended with it, so a new one runs, without the variables.
    stopped: the limit that it exceeded, if any.
    diff: each changed path, and its removed and added lines; bounded. Empty if the backend does not compare files.
    """

    status: int
    output: Stream = Stream()
    errors: Stream = Stream()
    directory: str = WORKING_FOLDER
    state: str = ""
    changes: list[str] = field(default_factory=list)
    restarted: bool = False
    stopped: str = ""
    diff: str = ""


@dataclass(frozen=True)
class Saved:
    """The state of an episode without its processes.

    entries: all its files, as the backend stores them.
    """

    entries: Any
    variables: bytes
    directory: str


class Sandbox(Protocol):
    """Runs one episode at a time. Every call has a deadline; SandboxLost is raised where it passes."""

    def start(self, tree: Tree, mounts: Mapping[str, Tree] | None = None) -> str:
        """End the episode with all its processes, begin another; returns the state key.

        mounts: read-only trees by their absolute folder, such as ``/tests``.
        """

    def run(self, command: str, seconds: float) -> CommandResult:
        """Run a command in the shell of the episode."""

    def files(self, folder: str = WORKING_FOLDER) -> dict[str, Node]:
        """The files below a folder of the episode; raises BadTree if they are too many."""

    def kill(self) -> list[str]:
        """Kill every process of the episode, and return their command lines; its files stay."""

    def save(self) -> Saved: ...

    def restore(self, saved: Saved) -> str:
        """Begin an episode in a saved state; returns its state key."""

    def close(self) -> None:
        """End the sandbox; a later ``start`` makes another."""
