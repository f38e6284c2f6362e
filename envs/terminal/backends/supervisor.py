"""Runs episodes inside a sandbox. Only the standard library: the sandbox contains no other package.

Three levels, each of which cannot reach the one above it:

    the trainer   outside; sends orders over a socket and waits with deadlines
    this process  in the namespaces that bubblewrap made; mounts the tree, starts shells, hashes files
    the shell     in namespaces of its own below; has no capability and sees no process but those it started

An episode is one tmpfs, so its size bounds the tree, ``/tmp``, the home folder and ``/dev/shm`` together. Killing the
shell kills all it started, because the kernel ends a process namespace with its first process.
"""

from __future__ import annotations

import ctypes
import difflib
import hashlib
import marshal
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

EPISODE = "/episode"
FOLDERS = {"app": "/app", "home": "/home/user", "tmp": "/tmp", "shm": "/dev/shm", "logs": "/logs"}
"""Folders of the episode's tmpfs, and where the shell sees them."""
HEADER = struct.Struct("<I")
POLL_SECONDS = 0.05  # between two looks at the memory of a command
RECENT_NS = 50_000_000  # a file changed within this time may change again without another time stamp
START_SECONDS = 10.0
MAX_ENTRIES = 20_000
MAX_READ = 64 * 2**20  # bytes of a tree that are sent
MAX_HASHED = (
    256 * 2**20
)  # bytes that one command can make the supervisor hash: files with holes are larger than the disk

MAX_TEXT = 16_384  # bytes of a file that is compared line by line
MAX_TEXTS = 2 * 2**20  # bytes of contents that an episode keeps for that
MAX_DIFF = 60  # lines
MAX_FILE_DIFF = 20  # lines of each file
MAX_COMPARED = 40_000  # pairs of lines: comparing takes the square of their number, which an agent can choose
MAX_DIFF_LINE = 200  # characters

NEW_MOUNTS = 0x20000
NEW_IPC = 0x8000000
NEW_PROCESSES = 0x20000000
NEW_ANY = 0x7E020000  # all of them and those of users, networks and control groups
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MNT_DETACH = 2

LIBRARY = ctypes.CDLL(None, use_errno=True)

# One command at a time is read from 199 and answered on 198: its status, then all variables, functions and options.
LOOP = """
while IFS= builtin read -r -d '' -u 199; do
builtin eval "$REPLY"
{ builtin printf '%s\\0' "$?"; builtin umask -p; builtin declare -p; builtin declare -f; builtin alias
builtin shopt -p; builtin set +o; builtin printf '\\0\\0'; } 2>/dev/null >&198
done
"""
COMMANDS, ANSWERS = 199, 198
PROCESS_LIMIT = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 14)
"""Whether each process namespace has its own largest number of a process. Before, it is one for the whole machine."""
VOLATILE = (
    b"COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME HOSTTYPE LINENO "
    b"MACHTYPE OPTERR OPTIND OSTYPE PIPESTATUS PPID PS4 RANDOM REPLY SECONDS SHELLOPTS SHLVL SRANDOM UID _"
).split()
"""Variables of the shell itself; they change from one command, or machine, to the next."""

# Calls that reach past the limits: memory and keys that no file system counts, namespaces, tracing of the kernel.
DENIED = {
    "x86_64": {
        "arch": 0xC000003E, "clone": 56, "clone3": 435, "socket": 41,
        "denied": (29, 64, 68, 155, 165, 166, 240, 248, 249, 250, 272, 298, 308, 310, 311, 319, 321, 323, 425, 428, 429,
                   430, 431, 432, 433, 442, 447),
    },
    "aarch64": {
        "arch": 0xC00000B7, "clone": 220, "clone3": 435, "socket": 198,
        "denied": (39, 40, 41, 97, 180, 186, 190, 194, 217, 218, 219, 241, 268, 270, 271, 279, 280, 282, 425, 428, 429,
                   430, 431, 432, 433, 442, 447),
    },
}  # fmt: skip


class Lost(Exception):
    """The trainer is gone."""


class Failed(Exception):
    """An order cannot be carried out; the message is for the user."""


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; OSError if it fails."""
    result = int(getattr(LIBRARY, name)(*arguments))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)


# Limits of the shell --------------------------------------------------------------------------------------------------


def _filter(machine: str) -> bytes:
    """A seccomp program that answers denied calls with an error, or nothing for another processor."""
    numbers: Any = DENIED.get(machine)
    if numbers is None:
        return b""
    load = 0x20
    equal = 0x15
    at_least = 0x35
    any_bit = 0x45
    give_back = 0x06
    allow = 0x7FFF0000
    not_permitted = 0x50001  # an error with its number
    not_implemented = 0x50000 | 38
    no_such_family = 0x50000 | 97
    program = [(load, 0, 0, 4), (equal, 1, 0, numbers["arch"]), (give_back, 0, 0, not_permitted), (load, 0, 0, 0)]
    # The second set of calls of x86-64, with numbers from 2**30 on, would lead around the list.
    program += [(at_least, 0, 1, 0x40000000), (give_back, 0, 0, not_permitted)]
    for number in numbers["denied"]:
        program += [(equal, 0, 1, number), (give_back, 0, 0, not_permitted)]
    # The flags of clone3 are in memory, where a filter cannot look; the C library then uses clone.
    program += [(equal, 0, 1, numbers["clone3"]), (give_back, 0, 0, not_implemented)]
    program += [(equal, 0, 4, numbers["clone"]), (load, 0, 0, 16), (any_bit, 0, 1, NEW_ANY)]
    program += [(give_back, 0, 0, not_permitted), (give_back, 0, 0, allow)]
    # Unix, IPv4, IPv6 and netlink. Others, such as those between virtual machines, are in no network namespace.
    program += [(equal, 0, 6, numbers["socket"]), (load, 0, 0, 16)]
    program += [(equal, 4, 0, 1), (equal, 3, 0, 2), (equal, 2, 0, 10), (equal, 1, 0, 16)]
    program += [(give_back, 0, 0, no_such_family), (give_back, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


FILTER = _filter(os.uname().machine)


def give_up_rights() -> None:
    """Give up all capabilities for good, and install the filter of system calls."""
    call("prctl", 47, 4, 0, 0, 0)  # the ambient set, which a started program would inherit
    for number in range(64):
        if LIBRARY.prctl(24, number, 0, 0, 0) == -1:  # the bounding set
            break
    header = struct.pack("<Ii", 0x20080522, 0)
    call("capset", header, bytes(24))
    call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    if FILTER:
        program = ctypes.create_string_buffer(FILTER, len(FILTER))
        call("prctl", 22, 2, struct.pack("<HxxxxxxQ", len(FILTER) // 8, ctypes.addressof(program)), 0, 0)


def bound(limits: dict[str, int]) -> None:
    """Set the limits of this process and of all it starts."""
    for resource_name, value in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_AS, limits["address_space"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 65536),
        (resource.RLIMIT_MSGQUEUE, 65536),
    ):
        hard = resource.getrlimit(resource_name)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_name, (limit, limit))


# Trees ----------------------------------------------------------------------------------------------------------------

Entry = tuple[bytes, str, int, bytes, int]
"""Path below the episode's folder, kind, mode, content or target, and time of change in ns.

Kinds: d (folder), f (file), l (symbolic link), h (hard link; the target is a path before it), p (pipe).
"""


def write_tree(entries: list[Entry]) -> None:
    """Write a tree. Modes and times of folders come last: a folder may be read-only, and files change its time."""
    root = EPISODE.encode() + b"/"
    folders = []
    for path, entry_type, mode, content, changed in entries:
        target = root + path
        if entry_type == "d":
            with suppress(FileExistsError):
                os.mkdir(target)
            folders.append((target, mode, changed))
            continue
        if entry_type == "l":
            os.symlink(content, target)
        elif entry_type == "h":
            os.link(root + content, target, follow_symlinks=False)
            continue
        elif entry_type == "p":
            os.mkfifo(target)
        else:
            number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
            with os.fdopen(number, "wb", buffering=0) as file:
                file.write(content)
        if entry_type != "l":
            os.chmod(target, mode)
        os.utime(target, ns=(changed, changed), follow_symlinks=False)
    for target, mode, changed in reversed(folders):
        os.chmod(target, mode)
        os.utime(target, ns=(changed, changed))


class Snapshot:
    """Contents, modes and links of the episode's files, without times; content is read again only if it may differ."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[str, int, bytes]] = {}
        self._changes: list[bytes] = []  # of the last update
        self._previous: dict[bytes, tuple[str, int, bytes]] = {}
        self._hashes: dict[int, tuple[tuple[int, ...], bytes]] = {}
        self._hashed = 0
        self._texts: dict[bytes, bytes] = {}  # contents by hash
        self._stored_bytes = 0

    def update(self) -> list[str]:
        """Look at all files; returns the changes, one a line: ``+ path``, ``~ path`` or ``- path``."""
        previous = self.entries
        self.entries = {}
        self._hashed = 0
        inodes: dict[int, bytes] = {}
        now = time.time_ns()
        for path, entry, status in walk():
            self.entries[path] = self._describe(path, entry, status, inodes, now)
        changes = []
        if self.entries != previous:
            changes += [b"- " + path for path in previous if path not in self.entries]
            for path, description in self.entries.items():
                if previous.get(path) != description:
                    changes.append((b"~ " if path in previous else b"+ ") + path)
        self._changes = changes
        self._previous = previous
        return [change.decode("utf-8", "backslashreplace") for change in changes[:50]]

    def diff(self) -> str:
        """What the last update saw: a line for each changed path, and below it removed and added lines of text."""
        lines: list[str] = []
        for change in self._changes:
            path = change[2:]
            before, after = self._previous.get(path), self.entries.get(path)
            verb = {b"-": "removed", b"~": "changed", b"+": "new"}[change[:1]]
            mode = f", mode {before[1]:o} to {after[1]:o}" if before and after and before[1] != after[1] else ""
            lines.append(f"{verb} {path.decode('utf-8', 'backslashreplace')}{mode}"[:MAX_DIFF_LINE])
            lines += self._changed_lines(before, after)
            if len(lines) > MAX_DIFF:
                lines[MAX_DIFF:] = ["..."]
                break
        return "\n".join(lines)

    def _changed_lines(self, before: tuple[str, int, bytes] | None, after: tuple[str, int, bytes] | None) -> list[str]:
        """Removed and added lines; none where one of the files is no text, or is too large."""
        if before == after or any(side and side[0] not in "fl" for side in (before, after)):
            return []
        contents = [self._content(side) for side in (before, after)]
        if contents[0] is None or contents[1] is None:
            return []
        old, new = (content.decode("utf-8", "replace").splitlines() for content in contents if content is not None)
        lines = [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
        if 0 < len(old) * len(new) <= MAX_COMPARED:
            differences = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]  # without names of files
            lines = [line for line in differences if not line.startswith("@@")]
        first_lines = [line[:MAX_DIFF_LINE] for line in lines[:MAX_FILE_DIFF]]
        return first_lines + ([f"... {len(lines) - MAX_FILE_DIFF} more lines"] if len(lines) > MAX_FILE_DIFF else [])

    def _content(self, side: tuple[str, int, bytes] | None) -> bytes | None:
        if side is None:
            return b""
        return side[2] if side[0] == "l" else self._texts.get(side[2])

    def _store_text(self, digest: bytes, content: bytes) -> None:
        if len(content) > MAX_TEXT or self._stored_bytes + len(content) > MAX_TEXTS or digest in self._texts:
            return
        if b"\0" not in content:
            self._texts[digest] = content
            self._stored_bytes += len(content)

    def digest(self, *texts: bytes) -> str:
        result = hashlib.sha256()
        for path, (entry_type, mode, content) in sorted(self.entries.items()):
            result.update(b"%d %b %b %o %b\n" % (len(path), path, entry_type.encode(), mode, content))
        for text in texts:
            result.update(b"%d " % len(text) + text)
        return result.hexdigest()[:24]

    def _describe(
        self, path: bytes, entry: os.DirEntry[bytes], status: os.stat_result, inodes: dict[int, bytes], now: int
    ) -> tuple[str, int, bytes]:
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            return "d", mode, b""
        if stat.S_ISLNK(status.st_mode):
            return "l", 0, os.readlink(entry.path)
        if status.st_nlink > 1:
            first = inodes.setdefault(status.st_ino, path)
            if first != path:
                return "h", mode, first
        if not stat.S_ISREG(status.st_mode):
            return "p", mode, b""
        times = (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        cached = self._hashes.get(status.st_ino)
        if cached is None or cached[0] != times:
            self._hashed += status.st_size
            if self._hashed > MAX_HASHED:
                raise Failed(f"the files, holes included, have more than {MAX_HASHED >> 20} MiB")
            content = read_file(entry.path)
            # The index of git holds times and numbers of files: equal states would differ in it.
            content = content_of_index(content) if path.endswith(b"/.git/index") else content
            cached = (times, hashlib.sha256(content).digest())
            self._store_text(cached[1], content)
            if now - status.st_ctime_ns > RECENT_NS:
                self._hashes[status.st_ino] = cached
        return "f", mode, cached[1]


def content_of_index(data: bytes) -> bytes:
    """The index of git (version 2) without what ``stat`` says of the files; other data unchanged."""
    if data[:8] != b"DIRC\0\0\0\2" or len(data) < 12:
        return data
    (count,) = struct.unpack(">I", data[8:12])
    offset = 12
    entries = []
    for _ in range(min(count, MAX_ENTRIES)):
        end = data.find(b"\0", offset + 62)
        if end < 0:
            return data
        entries.append(data[offset + 24 : offset + 28] + data[offset + 40 : end])
        offset += (end - offset) // 8 * 8 + 8
    return b"\0".join(entries)


def walk(root: str = EPISODE) -> list[tuple[bytes, os.DirEntry[bytes], os.stat_result]]:
    """All entries below a folder, with their path in it, parents first; what cannot be read is left out.

    Raises Failed if there are too many.
    """
    entries = []
    pending = [root.encode()]
    skip = len(root) + 1
    while pending:
        folder = pending.pop()
        children = []
        with suppress(OSError), os.scandir(folder) as content:
            for entry in content:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    children.append((entry.path[skip:], entry, status))
        children.sort(key=lambda child: child[0])
        entries += children
        pending += [entry.path for _, entry, status in children if stat.S_ISDIR(status.st_mode)]
        if len(entries) > MAX_ENTRIES:
            raise Failed(f"more than {MAX_ENTRIES} files")
    return entries


def read_file(path: bytes) -> bytes:
    """The content of a regular file; empty if it is gone, or a link by now."""
    with suppress(OSError):
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            chunks = []
            while chunk := os.read(number, 1 << 20):
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            os.close(number)
    return b""


def read_tree(root: str = EPISODE, below: bytes = b"") -> list[Entry]:
    """The files of a folder as they are, by their path in it, or with ``below`` in front.

    Raises Failed if they are too many or too large.
    """
    entries: list[Entry] = []
    inodes: dict[int, bytes] = {}
    size = 0
    for name, entry, status in walk(root):
        path = below + b"/" + name if below else name
        mode = stat.S_IMODE(status.st_mode)
        entry_type, content = "p", b""
        if stat.S_ISDIR(status.st_mode):
            entry_type = "d"
        elif stat.S_ISLNK(status.st_mode):
            entry_type, content = "l", os.readlink(entry.path)
        elif status.st_nlink > 1 and inodes.setdefault(status.st_ino, path) != path:
            entry_type, content = "h", inodes[status.st_ino]
        elif stat.S_ISREG(status.st_mode):
            entry_type, content = "f", read_file(entry.path)
        size += len(content)
        if size > MAX_READ:
            raise Failed(f"more than {MAX_READ >> 20} MiB of files")
        entries.append((path, entry_type, mode, content, status.st_mtime_ns))
    return entries


# The shell ------------------------------------------------------------------------------------------------------------


class Output:
    """A file in memory that takes what a stream of the shell prints. Nothing in the sandbox has a path to it."""

    def __init__(self, name: str):
        self.number = os.memfd_create(name, os.MFD_CLOEXEC)
        flags = ctypes.CDLL(None).fcntl(self.number, 3)
        ctypes.CDLL(None).fcntl(self.number, 4, flags | os.O_APPEND)  # so that truncating it starts it anew

    def take(self, limit: int) -> tuple[bytes, bytes, int]:
        """The first and the last half of ``limit`` bytes, the size of all; then empty the file."""
        size = os.fstat(self.number).st_size
        if size <= limit:
            head, tail = os.pread(self.number, limit, 0), b""
        else:
            head = os.pread(self.number, limit - limit // 2, 0)
            tail = os.pread(self.number, limit // 2, size - limit // 2)
        if size:
            os.ftruncate(self.number, 0)
        return head, tail, size


class Shell:
    """A shell that keeps its state from one command to the next, in namespaces of its own."""

    def __init__(self, options: dict[str, Any], directory: str, variables: dict[str, str]):
        self.options = options
        self.outputs = (Output("stdout"), Output("stderr"))
        command_end, self._commands = os.pipe2(os.O_CLOEXEC)
        self._answers, answer_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._commands, False)
        os.set_blocking(self._answers, False)
        # Only the first child of a process is in the namespace that it made; back in ours, it can make another.
        call("setns", OUR_PROCESSES, NEW_PROCESSES)
        call("unshare", NEW_PROCESSES)
        self.process = os.fork()
        if self.process == 0:
            self._become(directory, variables, command_end, answer_end)
        os.close(command_end)
        os.close(answer_end)
        self.handle = os.pidfd_open(self.process)

    def _become(self, directory: str, variables: dict[str, str], command_end: int, answer_end: int) -> NoReturn:
        """Turn this copy of the supervisor into the shell."""
        try:
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(self.outputs[0].number, 1)
            os.dup2(self.outputs[1].number, 2)
            os.dup2(command_end, COMMANDS)
            os.dup2(answer_end, ANSWERS)
            os.setsid()
            # The filter denies what a namespace of messages would separate, and a namespace takes longer.
            call("unshare", NEW_MOUNTS if FILTER else NEW_MOUNTS | NEW_IPC)
            for name, target in FOLDERS.items():
                mount(f"{EPISODE}/{name}", target, "", MS_BIND)
            for name in self.options["read_only"]:
                mount(f"{EPISODE}/{name}", f"/{name}", "", MS_BIND)
                mount("", f"/{name}", "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
            call("umount2", EPISODE.encode(), MNT_DETACH)
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
            if PROCESS_LIMIT:
                with suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
                    file.write("512")
            # Settings of the whole machine are files in /proc, which root may write even without capabilities.
            mount("", "/proc", "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
            os.umask(0o022)
            try:
                os.chdir(directory)
            except OSError:
                os.chdir("/app")
            bound(self.options["limits"])
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            give_up_rights()
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-c", LOOP, "bash"], variables)
        except BaseException as error:
            os.write(2, f"the shell does not start: {error}\n".encode())
        os._exit(71)

    def ask(self, command: bytes, seconds: float) -> tuple[int | None, bytes, str]:
        """Run a command: its status (None if the shell ended), the shell's variables, and why the shell was killed."""
        poll = select.poll()
        for number, event in ((self._answers, select.POLLIN), (self.handle, select.POLLIN), (TRAINER, 0)):
            poll.register(number, event)
        pending = memoryview(command + b"\0")
        answer = bytearray()
        begin = time.monotonic()
        wait = 0.0
        while not answer.endswith(b"\0\0"):
            if pending:
                pending = self._send(pending)
            elapsed = time.monotonic() - begin
            if elapsed >= seconds:
                return None, b"", f"it took more than {seconds:g} s"
            if elapsed > POLL_SECONDS and (reason := self._excess()):
                return None, b"", reason
            wait = min(POLL_SECONDS, seconds - elapsed) if not pending else 0.001
            events = dict(poll.poll(wait * 1000 + 1))
            if events.get(TRAINER, 0):
                raise Lost
            if self._answers in events:
                chunk = os.read(self._answers, 1 << 16)
                if not chunk:  # every process that could answer has ended
                    return None, b"", ""
                answer += chunk
                if len(answer) > 1 << 22:
                    return None, b"", "its variables take more than 4 MiB"
            elif self.handle in events:
                return None, b"", ""
        status, _, variables = bytes(answer[:-2]).partition(b"\0")
        if not status.isdigit():
            return None, b"", "it wrote to the files of the shell"
        return int(status), variables, ""

    def _send(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._commands, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return memoryview(b"")

    def _excess(self) -> str:
        """Which limit all processes of the shell together exceed; empty if none."""
        resident = processes = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, os.getpid()):
                with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/statm") as file:
                    resident += int(file.read().split()[1])
                    processes += 1
        limits = self.options["limits"]
        if resident * PAGE > limits["memory"]:
            return f"it used more than {limits['memory'] >> 20} MiB of memory"
        if processes > limits["processes"]:
            return f"it started more than {limits['processes']} processes"
        return ""

    def directory(self) -> str:
        """The working directory, as the shell sees it."""
        try:
            return os.readlink(f"/proc/{self.process}/cwd")
        except OSError:
            return "/app"

    def background(self) -> list[bytes]:
        """The command lines of what the shell started and what still runs."""
        lines = self._command_lines()
        for _ in range(5):
            # A copy of the shell that is about to become a program has the shell's own command line for a moment, and
            # then none.
            if not any(not line or line.startswith(b"bash\0--norc\0--noprofile\0") for line in lines):
                break
            time.sleep(0.002)
            lines = self._command_lines()
        return lines

    def _command_lines(self) -> list[bytes]:
        known_processes = (1, os.getpid(), self.process)  # bubblewrap, the supervisor and the shell
        names = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in known_processes]
        lines = []
        for name in names:
            line = read_file(f"/proc/{name}/cmdline".encode())
            if line or read_file(f"/proc/{name}/stat".encode()).rpartition(b")")[2].split()[:1] not in ([], [b"Z"]):
                lines.append(line)
        return sorted(lines)

    def kill(self) -> int:
        """Kill the shell and all it started, and wait for their end; returns the shell's status."""
        if self.process:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            status = os.waitpid(self.process, 0)[1]
            for number in (self.handle, self._commands, self._answers, *(output.number for output in self.outputs)):
                os.close(number)
            self.process = 0
            return os.waitstatus_to_exitcode(status)
        return 0


def stable_variables(text: bytes) -> bytes:
    """The shell's variables, functions and options without those that change by themselves."""
    lines = text.split(b"\n")
    return b"\n".join(line for line in lines if not ((name := _name_of(line)) in VOLATILE or name.startswith(b"BASH")))


def _name_of(line: bytes) -> bytes:
    if not line.startswith(b"declare -"):
        return b""
    return line.split(b" ", 2)[-1].partition(b"=")[0]


# Orders ---------------------------------------------------------------------------------------------------------------


class Supervisor:
    """Carries out the trainer's orders, one at a time."""

    def __init__(self, image_folder: str) -> None:
        # The files that an image has in its working folder, before the episode's are mounted over them.
        self.image_tree = read_tree(image_folder, b"app") if image_folder else []
        self.shell: Shell | None = None
        self.options: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.snapshot = Snapshot()
        self.mounted = False
        self.directory = "/app"
        self.dump = b""  # the shell's variables after the last command

    def start(self, entries: list[Entry], options: dict[str, Any], variables: dict[str, str]) -> str:
        """End the episode and begin another with these files; returns its state key."""
        self.kill()
        if self.mounted:
            call("umount2", EPISODE.encode(), MNT_DETACH)
        size, files = options["limits"]["disk"], options["limits"]["files"]
        mount("tmpfs", EPISODE, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={files},mode=755")
        self.mounted = True
        for name in (*FOLDERS, *options["read_only"]):
            os.mkdir(f"{EPISODE}/{name}")
            if name in ("tmp", "shm"):
                os.chmod(f"{EPISODE}/{name}", 0o1777)
        write_tree([entry for entry in self.image_tree if entry[0] != b"app"])
        write_tree(entries)
        self.options = options
        self.variables = variables
        self.snapshot = Snapshot()
        self.snapshot.update()
        self.shell = Shell(options, options["directory"], variables)
        self.directory = options["directory"]
        # The variables of an untouched shell, so that equal states have equal keys from the start.
        answer = self.shell.ask(options["restore"] or b":", START_SECONDS)
        if answer[0] is None:
            errors = self.shell.outputs[1].take(1000)[0].decode("utf-8", "replace")
            raise Failed(f"the shell does not start: {errors or answer[2]}")
        self.dump = stable_variables(answer[1])
        for output in self.shell.outputs:
            output.take(0)
        return self._state()

    def run(self, command: bytes, seconds: float, limit: int) -> tuple[Any, ...]:
        """Run a command in the episode's shell.

        Returns its status, standard output and standard error (first bytes, last bytes, size), the working directory,
        the state key, the changed files, whether a new shell was started, why the command was stopped, and the changed
        lines.
        """
        if self.shell is None:
            raise Failed("no episode was started")
        shell = self.shell
        status, variables, reason = shell.ask(command, seconds)
        streams = [output.take(limit) for output in shell.outputs]
        ended = status is None
        if status is None:
            # A shell that ended by itself is in no directory; the next one begins where the last command did.
            if reason:
                self.directory = shell.directory()
            exit_code = shell.kill()
            status = exit_code if exit_code >= 0 else 128 - exit_code
            if reason:
                status = 124
            self.shell = Shell(self.options, self.directory, self.variables)
            variables = self.shell.ask(b":", START_SECONDS)[1]
        self.directory = self.shell.directory()
        self.dump = stable_variables(variables)
        changes = self.snapshot.update()
        return status, *streams, self.directory, self._state(), changes, ended, reason, self.snapshot.diff()

    def _state(self) -> str:
        background = self.shell.background() if self.shell else []
        return self.snapshot.digest(self.directory.encode("utf-8", "surrogateescape"), self.dump, *background)

    def tree(self) -> list[Entry]:
        return read_tree()

    def variables_of_shell(self) -> bytes:
        return self.dump

    def kill(self) -> list[bytes]:
        """Kill everything that the episode started, and return the command lines; its files stay."""
        lines = []
        if self.shell is not None:
            lines = self.shell.background()
            self.shell.kill()
            self.shell = None
        return lines


def receive() -> Any:
    """The next order; Lost at the end."""
    return marshal.loads(_read(HEADER.unpack(_read(HEADER.size))[0]))


def _read(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(TRAINER, min(size - len(data), 1 << 20))
        if not chunk:
            raise Lost
        data += chunk
    return bytes(data)


def send(message: Any) -> None:
    data = memoryview(_frame(message))
    while data:
        data = data[os.write(REPLIES, data) :]


def serve(image_folder: str) -> None:
    supervisor = Supervisor(image_folder)
    orders: dict[str, Callable[..., Any]] = {
        "start": supervisor.start, "run": supervisor.run, "tree": supervisor.tree, "kill": supervisor.kill,
        "variables": supervisor.variables_of_shell,
    }  # fmt: skip
    send(("ready", os.uname().release))
    while True:
        name, *arguments = receive()
        try:
            answer = ("answer", orders[name](*arguments))
        except (Failed, OSError) as error:
            answer = ("error", str(error))
        send(answer)


def _frame(message: Any) -> bytes:
    body = marshal.dumps(message)
    return HEADER.pack(len(body)) + body


if __name__ == "__main__":
    PAGE = resource.getpagesize()
    # A socket for both, or the two pipes of a container.
    TRAINER, REPLIES = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (TRAINER, REPLIES):
        os.set_inheritable(descriptor, False)
    OUR_PROCESSES = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    with suppress(Lost, BrokenPipeError, ConnectionResetError):
        serve(sys.argv[3])
