"""The fork server: a process that forks the pool's workers.

The training process may hold a model, threads and an unguarded ``__main__``, so it must not fork, nor have its script
imported again. It starts one small process, which imports the environment's module, runs its ``preload`` and forks
workers on request. Workers start in milliseconds and share what was loaded.

When the pool's process ends, the fork server kills all workers and everything they started. It also kills a worker
whose children take too much memory.
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

_ORDER = struct.Struct(f"<cI{TOKEN_BYTES}s")  # operation, number of the worker, token of a new one
_STATUS = struct.Struct("<i?")  # exit code of a worker, and whether the fork server killed it for its memory
_WATCH_SECONDS = 0.25  # between checks of the workers' memory
_WATCH_SHARE = 4  # how many times as long as a check the next one waits at least
_ANSWER_SECONDS = 30.0
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
        given = os.environ if variables is None else variables
        self._child = Child(
            "gagpo.envs.pool.fork_server:main",
            # One hash seed, so that the order of sets is the same in every worker and run.
            variables={**dict.fromkeys(_THREADS, "1"), "PYTHONHASHSEED": "0", **given},
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
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [_ORDER.pack(b"f", number, token)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ForkServerLost(f"the process that starts workers has ended ({error})") from None
        return ours

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
        return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"

    def close(self) -> None:
        """End the fork server and all workers; the next fork starts another. Idempotent."""
        self._child.end(wait=_ANSWER_SECONDS)
        self._output.finish()


# Inside the fork server ---------------------------------------------------------------------------------------------


def main(pipe: Pipe) -> None:
    """Run the fork server until the pool's process closes the ``pipe`` or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard.adopt_orphans()
    pool = os.getppid()
    try:
        text, kwargs, limit, scratch = pipe.receive()
    except EOFError:
        return
    spec = EnvSpec.from_json(text)
    failure = _preload(spec, kwargs)
    gc.collect()
    gc.freeze()  # collections in the workers must not touch shared pages
    watch = _MemoryWatch(limit)
    workers: dict[int, int] = {}
    try:
        while os.getppid() == pool:
            ready, _, _ = select.select([pipe.socket], [], [], watch.patience())
            watch.look_if_due(workers)  # also while orders come without a pause
            if not ready:
                continue
            order, descriptors, _, _ = socket.recv_fds(pipe.socket, _ORDER.size, 1)
            if len(order) < _ORDER.size:
                return
            what, number, token = _ORDER.unpack(order)
            if what == b"k":
                code = guard.end(workers.pop(number)) if number in workers else 0
                guard.end_strays(workers.values())
                pipe.socket.sendall(_STATUS.pack(code, watch.killed(number)))
                continue
            with socket.socket(fileno=descriptors[0]) as connection:
                os.set_inheritable(connection.fileno(), False)
                server = os.getpid()
                process = os.fork()
                if process == 0:
                    pipe.close()
                    guard.die_with_parent(server)
                    _run_worker(connection, token, spec, kwargs, failure, limit)
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


class _MemoryWatch:
    """Kills workers that take too much memory with their children; the system limits only single processes."""

    def __init__(self, limit_mb: int | None):
        self._seconds = 1.0 if limit_mb is None else _WATCH_SECONDS
        self._most = None if limit_mb is None else (limit_mb << 20) + guard.resident_memory(os.getpid())
        self._killed: set[int] = set()
        self._due = time.monotonic() + self._seconds

    def patience(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due - time.monotonic())

    def look_if_due(self, workers: Mapping[int, int]) -> None:
        """Check all workers unless that was done a moment ago."""
        begin = time.monotonic()
        if begin < self._due:
            return
        if self._most is not None:
            self._look(workers, self._most)
        # Hundreds of workers with many children take long to check: orders get most of the time.
        self._due = time.monotonic() + max(self._seconds, _WATCH_SHARE * (time.monotonic() - begin))

    def _look(self, workers: Mapping[int, int], most: int) -> None:
        for number, process in workers.items():
            if number not in self._killed and guard.resident_memory(process) > most:
                self._killed.add(number)
                guard.kill(process)  # reaped when the pool asks for its status

    def killed(self, number: int) -> bool:
        """Whether it killed worker ``number``; forgets the worker."""
        if killed := number in self._killed:
            self._killed.remove(number)
        return killed


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
        # A fork made by an environment must not answer for the worker, nor hide its end.
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
