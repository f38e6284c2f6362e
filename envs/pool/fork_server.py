"""The fork server: a process that forks the pool's workers.

The training process may hold a model, threads and an unguarded ``__main__``, so it must not fork, nor have its script
imported again. It starts one small process, which imports the environment's module, runs its ``preload`` and forks
workers on request. Workers start in milliseconds and share what was loaded.

Who ends whom: the fork server exits when the pool closes its pipe, or when its parent process id changes because the
pool's process died. It then kills all workers and everything they started. The system kills the workers if the fork
server dies first (``PR_SET_DEATHSIG``). Processes that a worker leaves behind are re-parented to the fork server, which
is their subreaper, and killed with the next order that ends a worker. It also kills a worker whose children take too
much memory.

Who waits for whom: the pool waits for an answer to an order that kills, at most ``_ANSWER_SECONDS``, and for nothing
when it forks: the new worker answers on its own connection. The fork server waits for orders, and wakes up for the
memory watchdog.
"""

from __future__ import annotations

import gc
import io
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from gymnasium.envs.registration import EnvSpec, load_env_creator

from gagpo.base import guard
from gagpo.base.child import Child, Pipe
from gagpo.base.errors import GagpoError
from gagpo.base.removal import remove
from gagpo.base.terminal import printable
from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import name_of, portable
from gagpo.envs.pool.output import CapturedOutput
from gagpo.envs.pool.wire import TOKEN_BYTES, describe, plain
from gagpo.envs.pool.worker import maker, serve

_ORDER = struct.Struct(f"<cI{TOKEN_BYTES}s")  # b"f" to fork or b"k" to kill, number of the worker, token of a new one
_STATUS = struct.Struct("<i?")  # exit code of a worker, and whether the fork server killed it for its memory
_WATCH_SECONDS = 0.25  # between checks of the workers' memory
_WATCH_PAUSE_FACTOR = 4  # the least pause between two checks, relative to the time of a check
_ANSWER_SECONDS = 30.0  # for the fork server to take its settings, or to kill a worker
# One thread each: a pool has about as many workers as the machine has cores.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ForkServerLost(GagpoError, RuntimeError):
    """The fork server died or does not answer."""


class ForkServer:
    """Starts and ends worker processes by a number that the caller chooses.

    spec, kwargs: of the environment.
    memory_limit_mb: MiB that a worker and its children may take beyond what it shares with the others; None for no
        limit.
    variables: environment variables of the fork server and its workers; None for those of this process.
    scratch: a folder that the fork server removes at its end, even if this process was killed; '' for none.
    """

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Kwargs,
        memory_limit_mb: int | None = None,
        variables: Mapping[str, str] | None = None,
        scratch: str = "",
    ):
        self._settings = (spec, kwargs, memory_limit_mb, scratch)
        inherited = os.environ if variables is None else variables
        self._child = Child(
            "gagpo.envs.pool.fork_server:main",
            # One hash seed, so that the order of sets is the same in every worker and run.
            variables={**dict.fromkeys(_THREADS, "1"), "PYTHONHASHSEED": "0", **inherited},
        )
        self._output = CapturedOutput(name_of(spec))

    def start(self) -> Pipe:
        """Start the fork server unless it was started; ValueError if the settings cannot be sent to it."""
        if self._child.pipe is None:
            spec, kwargs, memory_limit_mb, scratch = self._settings
            settings = (portable(spec), plain(dict(kwargs), "kwargs"), memory_limit_mb, scratch)
            with self._output.receiving() as descriptor:
                self._child.output = descriptor
                pipe = self._child.start()
            with suppress(OSError):
                pipe.send(settings, _ANSWER_SECONDS)
        return self._child.start()

    def fork(self, number: int, token: bytes) -> socket.socket:
        """Start worker ``number``, whose answers carry the ``token``, and return the connection to it.

        Raises ForkServerLost.
        """
        control = self.start().socket
        pool_end, worker_end = socket.socketpair()
        with worker_end:  # closed here after sending: the worker's copy must be the last, so that its death is an EOF
            try:
                socket.send_fds(control, [_ORDER.pack(b"f", number, token)], [worker_end.fileno()])
            except OSError as error:
                pool_end.close()
                raise ForkServerLost(f"the process that starts workers has ended ({error})") from None
        return pool_end

    def kill(self, number: int) -> str:
        """Kill worker ``number`` and everything it started, and describe how it ended; raises ForkServerLost."""
        try:
            control = self.start().socket
            control.settimeout(_ANSWER_SECONDS)
            control.sendall(_ORDER.pack(b"k", number, b""))
            status = control.recv(_STATUS.size)
        except OSError as error:
            raise ForkServerLost(f"the process that starts workers does not answer ({error})") from None
        if len(status) < _STATUS.size:
            raise ForkServerLost("the process that starts workers has ended")
        code, over_limit = _STATUS.unpack(status)
        if over_limit:
            return "killed: with its children it took more memory than its limit"
        if code >= 0:
            return f"exit status {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"signal {name}"

    def close(self) -> None:
        """End the fork server and all workers; the next fork starts another. Idempotent."""
        self._child.end(wait=_ANSWER_SECONDS)
        self._output.finish()


# Inside the fork server ---------------------------------------------------------------------------------------------


def main(pipe: Pipe) -> None:
    """Run the fork server until the pool's process closes the ``pipe`` or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the pool ends this process
    guard.adopt_orphans()
    pool_process = os.getppid()
    try:
        text, kwargs, limit, scratch = pipe.receive()
    except EOFError:
        return
    spec = EnvSpec.from_json(text)
    failure = _preload(spec, kwargs)
    gc.collect()
    gc.freeze()  # a collection in a worker would write to the pages it shares with the others, and copy them
    watchdog = _MemoryWatchdog(limit)
    workers: dict[int, int] = {}  # process id by number
    try:
        while os.getppid() == pool_process:  # the timeout also bounds how late the pool's death is noticed
            readable, _, _ = select.select([pipe.socket], [], [], watchdog.seconds_left())
            watchdog.check_if_due(workers)  # also while orders come without a pause
            if not readable:
                continue
            order, descriptors, _, _ = socket.recv_fds(pipe.socket, _ORDER.size, 1)
            if len(order) < _ORDER.size:  # the pool closed the pipe
                return
            operation, number, token = _ORDER.unpack(order)
            if operation == b"k":
                code = guard.end(workers.pop(number)) if number in workers else 0
                guard.end_strays(workers.values())  # processes of ended workers, which this process has adopted
                pipe.socket.sendall(_STATUS.pack(code, watchdog.was_killed(number)))
                continue
            with socket.socket(fileno=descriptors[0]) as connection:
                os.set_inheritable(connection.fileno(), False)  # a program that an environment starts must not get it
                fork_server = os.getpid()
                process = os.fork()
                if process == 0:
                    pipe.close()
                    guard.die_with_parent(fork_server)
                    _run_worker(connection, token, spec, kwargs, failure, limit)
                # Parent and child both set the group: a kill that comes before the child has run must find it.
                with suppress(OSError):
                    os.setpgid(process, process)
                workers[number] = process
    except OSError:
        pass  # the pool ended in the middle of an order
    finally:
        for process in workers.values():
            guard.end(process)
        guard.end_strays(())
        if scratch:
            remove(scratch)


class _MemoryWatchdog:
    """Kills workers that take too much memory with their children; the system limits only single processes."""

    def __init__(self, limit_mb: int | None):
        self._seconds = 1.0 if limit_mb is None else _WATCH_SECONDS  # the fork server checks for its parent as often
        # What the fork server has loaded is shared with every worker, and does not count.
        self._max_bytes = None if limit_mb is None else (limit_mb << 20) + guard.resident_memory(os.getpid())
        self._killed_workers: set[int] = set()
        self._shared_files: dict[int, dict[str, tuple[int, int]]] = {}  # by number of the worker
        self._next_check = time.monotonic() + self._seconds

    def seconds_left(self) -> float:
        """Seconds until the next check."""
        return max(0.0, self._next_check - time.monotonic())

    def check_if_due(self, workers: Mapping[int, int]) -> None:
        """Check all workers unless that was done a moment ago."""
        start = time.monotonic()
        if start < self._next_check:
            return
        if self._max_bytes is not None:
            self._check(workers, self._max_bytes)
        # Hundreds of workers with many children take long to check: orders get most of the time.
        self._next_check = time.monotonic() + max(self._seconds, _WATCH_PAUSE_FACTOR * (time.monotonic() - start))

    def _memory(self, number: int, process: int) -> int:
        return guard.resident_memory(process, self._shared_files.setdefault(number, {}))

    def _check(self, workers: Mapping[int, int], max_bytes: int) -> None:
        self._shared_files = {number: files for number, files in self._shared_files.items() if number in workers}
        for number, process in workers.items():
            if number not in self._killed_workers and self._memory(number, process) > max_bytes:
                self._killed_workers.add(number)
                guard.kill(process)  # reaped when the pool asks for its status

    def was_killed(self, number: int) -> bool:
        """Whether this watchdog killed worker ``number``, whose number is then free for another process."""
        was_killed = number in self._killed_workers
        self._killed_workers.discard(number)
        return was_killed


def _preload(spec: EnvSpec, kwargs: Kwargs) -> str:
    """Import the environment's module and run its ``preload``; return the error, or an empty string."""
    try:
        assert isinstance(spec.entry_point, str)
        preload = getattr(load_env_creator(spec.entry_point), "preload", None)
        if preload is not None:
            preload(**{**spec.kwargs, **kwargs})
    except BaseException as error:  # Ctrl-C is ignored here, so every exception comes from the module
        return describe(error)
    return ""


def _run_worker(
    connection: socket.socket, token: bytes, spec: EnvSpec, kwargs: Kwargs, failure: str, limit: int | None
) -> None:
    """Run a forked worker; never returns."""

    def release() -> None:
        with suppress(OSError):
            os.close(connection.detach())

    status = 1
    try:
        os.setpgid(0, 0)
        guard.adopt_orphans()
        if limit is not None:
            guard.limit_memory(limit)
        # A fork made by an environment must not answer for the worker. It must not keep the connection open either:
        # the pool would not see the end of the worker.
        os.register_at_fork(after_in_child=release)
        for stream in (sys.stdout, sys.stderr):  # whole lines, since all workers write into one pipe
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True, write_through=False)
        serve(Pipe(connection), maker(spec, kwargs), token, failure, limit)
        status = 0
    except BaseException as error:
        print(printable(f"a worker of the pool ended: {describe(error)}"), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
