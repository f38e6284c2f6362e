"""Child processes: started safely, sent plain data, killed with everything they started.

    child = Child("package.module:function", memory=2 << 30)
    answer = child.ask(("add", 1, 2), seconds=5.0)  # starts the child if it does not run
    child.close()

The child imports the module and calls ``function(pipe, *arguments)``. Every wait has a deadline. Messages are
marshalled values: unlike pickle, they cannot make the receiving process import or run anything.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Generic, Protocol, TypeVar

from gagpo.base.errors import GagpoError
from gagpo.base.interpreter import command, module_path

HEADER = struct.Struct("<I")
LONGEST_FRAME = 64 * 2**20  # bytes; a longer message is an error
END_SECONDS = 5.0  # for a child to end: one in an uninterruptible wait must not block its owner

_BOOT = """
import sys, json
number, target, path, bare, memory, arguments = json.loads(sys.argv.pop())
sys.path[:] = path
if memory:
    import resource
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
import types
for name, places in bare.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = places
import importlib, socket
module, _, function = target.partition(":")
from gagpo.base.child import Pipe
connection = socket.socket(fileno=number)
connection.set_inheritable(False)
getattr(importlib.import_module(module), function)(Pipe(connection), *arguments)
"""


class ChildFailed(GagpoError, RuntimeError):
    """The child does not start, or does not answer."""


class ChildLate(ChildFailed):
    """The child did not answer in time and was killed."""


class ChildEnded(ChildFailed):
    """The child ended before it answered.

    status: its exit status, negative for a signal.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def pack(message: Any, token: bytes = b"") -> bytes:
    """``message`` as one frame: the length of the rest, the sender's ``token``, the marshalled message."""
    body = marshal.dumps(message)
    return HEADER.pack(len(token) + len(body)) + token + body


class Pipe:
    """One end of the connection between a process and its child."""

    def __init__(self, connection: socket.socket):
        self.socket = connection

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Send a message; OSError if the other side is gone, TimeoutError if it does not read in time."""
        self.socket.settimeout(seconds)
        self.socket.sendall(pack(message))

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, within ``seconds`` in all.

        Raises:
            EOFError: the other side closed the connection, or sent something else than a message.
            TimeoutError: no complete message came in time.
        """
        end = None if seconds is None else time.monotonic() + seconds
        (length,) = HEADER.unpack(self._read(HEADER.size, end))
        if length > LONGEST_FRAME:
            raise EOFError(f"a message of {length} bytes")
        body = self._read(length, end)
        try:
            return marshal.loads(body)
        except (TypeError, ValueError, MemoryError, RecursionError, SystemError) as error:
            raise EOFError("an unreadable message") from error

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int, end: float | None) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self.socket.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            chunk = self.socket.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError("the connection is closed")
            data += chunk
        return data


class Child:
    """A child process, started by :meth:`start` or :meth:`ask`, and again after it ended.

    ``ask`` may be called from any thread. A forked copy of this process starts a child of its own.

    target: the ``module:function`` to run.
    arguments: arguments of the function after its pipe.
    name: its name in errors.
    memory: limit of its address space in bytes; None for no limit.
    bare: packages imported without their ``__init__``, for a quick start.
    variables: its environment variables; None for those of this process.
    output: its standard output and error; by default output is discarded and errors go to those of this process.
    start_timeout: deadline for its first message, which ``ask`` waits for.
    """

    def __init__(
        self,
        target: str,
        *arguments: str,
        name: str = "a child process",
        memory: int | None = None,
        bare: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
        output: IO[Any] | int | None = None,
        start_timeout: float = 60.0,
    ):
        self.target = target
        self.arguments = arguments
        self.name = name
        self.memory = memory
        self.bare = bare
        self.variables = variables
        self.output = output
        self.start_timeout = start_timeout
        self._forget()
        _CHILDREN.add(self)

    def _forget(self) -> None:
        """Have no child: at first, and in a fork of this process."""
        self._lock = threading.Lock()
        self.pipe: Pipe | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def process(self) -> int | None:
        """The id of the child, which leads a process group of its own."""
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Pipe:
        """Start the child unless it was started; return the connection to it without waiting."""
        if self.pipe is not None:
            return self.pipe
        parent_end, child_end = socket.socketpair()
        with child_end:
            bare = {name: list(sys.modules[name].__path__) for name in self.bare}
            order = [child_end.fileno(), self.target, module_path(), bare, self.memory, self.arguments]
            try:
                self._process = subprocess.Popen(
                    command("-c", _BOOT, json.dumps(order)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if self.output is None else self.output,
                    stderr=self.output,
                    pass_fds=[child_end.fileno()],
                    env=None if self.variables is None else dict(self.variables),
                    start_new_session=True,  # Ctrl-C reaches only its owner
                )
            except OSError as error:
                parent_end.close()
                raise ChildFailed(f"cannot be started: {error}", where=self.name) from None
        self.pipe = Pipe(parent_end)
        self._finalizer = weakref.finalize(self, _finish, os.getpid(), self._process, self.pipe)
        return self.pipe

    def ask(self, message: Any, seconds: float) -> Any:
        """The child's answer to ``message``; the child is killed if it takes more than ``seconds``.

        Raises ChildEnded, ChildLate, or ChildFailed if it does not start.
        """
        with self._lock:
            try:
                if self.pipe is None:
                    self._await_start()
                pipe = self.start()
                pipe.send(message, seconds)
                return pipe.receive(seconds)
            except TimeoutError:
                self._end()
                raise ChildLate(f"did not answer in {seconds:.0f} s", where=self.name) from None
            except (EOFError, OSError):
                status = self._end(END_SECONDS)
                raise ChildEnded(f"{self.name} ended ({status})", status) from None
            except BaseException:  # after an interrupt, a late answer must not answer the next message
                self._end()
                raise

    def _await_start(self) -> None:
        try:
            self.start().receive(self.start_timeout)
        except (EOFError, OSError) as error:
            late = isinstance(error, TimeoutError)
            status = self._end(0.0 if late else END_SECONDS)
            why = f"it took more than {self.start_timeout:g} s" if late else f"it ended ({status})"
            raise ChildFailed(f"does not start: {why}", where=self.name) from None

    def end(self, wait: float = 0.0) -> int:
        """Give the child ``wait`` seconds to end, kill its process group, and return the child's exit status."""
        with self._lock:
            return self._end(wait)

    def close(self) -> None:
        """Kill the child; safe to call twice. A later ``ask`` starts another."""
        self.end()

    def _end(self, wait: float = 0.0) -> int:
        process = self._process
        pipe = self.pipe
        finalizer = self._finalizer
        self._process = self.pipe = self._finalizer = None
        if process is None or pipe is None or finalizer is None:
            return 0
        finalizer.detach()
        return _finish(os.getpid(), process, pipe, wait)


def _finish(owner: int, process: subprocess.Popen[bytes], pipe: Pipe, wait: float = 2.0) -> int:
    """End a child of the process ``owner``; do nothing in a fork of it."""
    pipe.close()
    if os.getpid() != owner:
        return 0
    if wait:
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(END_SECONDS)
    return 0


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Shared(Generic[T]):
    """A resource with several users in this process; it is closed when the last of them releases it."""

    def __init__(self, thing: T):
        self.thing = thing
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._users.clear)

    def take(self, user: object) -> T:
        """Register ``user`` and return the resource."""
        self._users.add(user)
        return self.thing

    def release(self, user: object) -> None:
        """End the use of ``user``; safe to call twice."""
        self._users.discard(user)
        if not self._users:
            self.thing.close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that is free at the moment, for a child to listen at."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class RestartBudget:
    """At most ``most`` restarts in any hour, so that a long run survives rare losses but not a broken child.

    >>> budget = RestartBudget(1, clock=iter([0.0, 1.0, 3601.0]).__next__)
    >>> budget.take(), budget.take(), budget.take()
    (True, False, True)
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self.most = most
        self._clock = clock
        self._restarts: deque[float] = deque()

    def take(self) -> bool:
        """Count another restart and return True, or return False if it is not allowed now."""
        now = self._clock()
        while self._restarts and now - self._restarts[0] >= 3600.0:
            self._restarts.popleft()
        if len(self._restarts) >= self.most:
            return False
        self._restarts.append(now)
        return True


_CHILDREN: weakref.WeakSet[Child] = weakref.WeakSet()


def _forget_all() -> None:
    for child in _CHILDREN:
        if child._process is not None:
            child._process.returncode = 0  # only the parent can wait for it
        if child._finalizer is not None:
            child._finalizer.detach()
        if child.pipe is not None:
            child.pipe.close()
        child._forget()


os.register_at_fork(after_in_child=_forget_all)
