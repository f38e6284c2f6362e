"""The process that forks the pool's workers, and the handle by which the pool directs it.

The training process may hold a model, threads and an unguarded ``__main__``, so it neither forks nor has its script
imported again. It starts one small process, the nursery, which imports the environment's module, runs its ``preload``
and forks a worker whenever it is told to: a worker starts in milliseconds and shares what was loaded. The nursery
runs no episode, hence never hangs with one, and so it is also the guardian: when the pool's process ends in whatever
way, it kills all workers with their process groups.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import json
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.pool.wire import describe, pack, plain
from gagpo.envs.pool.worker import maker, serve

_ORDER = struct.Struct("<cI")  # what to do, with which worker
_STATUS = struct.Struct("<i")
_ANSWER_SECONDS = 30.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from gagpo.envs.pool.nursery import main; main(sys.argv[1])"
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NurseryLost(GagpoError, RuntimeError):
    """The nursery died or does not answer."""


class UnknownEnvironment(GagpoError, ValueError):
    """An id under which no environment is registered."""


def find_spec(env_id: str) -> EnvSpec:
    """The registered ``EnvSpec`` of ``env_id``, which may name a module to import first (``"module:Name-v0"``).

    Raises :class:`UnknownEnvironment` with advice when there is no such module or no such id.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise UnknownEnvironment(f"environment {env_id!r}: {error}; is its folder on PYTHONPATH?") from None
    except gymnasium.error.Error as error:
        known = ", ".join(name for name in gymnasium.registry if name.startswith("gagpo/"))
        advice = f"there are {known}, and module:Name-v0 for one of your own"
        raise UnknownEnvironment(f"environment {env_id!r}: {' '.join(str(error).split())} ({advice})") from None


def portable(spec: EnvSpec) -> str:
    """``spec`` as JSON that another process can build from; ValueError when its class cannot be found there."""
    spec = copy.deepcopy(spec)
    if callable(spec.entry_point):
        module = getattr(spec.entry_point, "__module__", "__main__")
        name = getattr(spec.entry_point, "__qualname__", "<")
        if module == "__main__" or "<" in name or "." in name:
            raise InvalidArgument(
                f"environment {spec.id!r} is made by {name} of {module}, which other processes cannot import; "
                "put it at the top level of a module, or use workers=0"
            )
        spec.entry_point = f"{module}:{name}"
    spec.vector_entry_point = None
    return spec.to_json()


class Nursery:
    """Starts and ends worker processes, each known by a number that the caller chooses.

    Raises ValueError when the settings cannot be sent to another process.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any]):
        settings = pack((portable(spec), plain(dict(kwargs), "kwargs")))
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps([os.path.abspath(p) for p in sys.path])],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what environments print must not mix with results on standard output
                pass_fds=[theirs.fileno()],
                # One hash seed: what depends on the order of a set is then the same in every worker and run.
                env={**dict.fromkeys(_THREADS, "1"), "PYTHONHASHSEED": "0", **os.environ},
                start_new_session=True,  # Ctrl-C in the terminal reaches only the pool's process
            )
        with contextlib.suppress(OSError):
            self._control.sendall(settings)

    def fork(self, number: int) -> socket.socket:
        """Have worker ``number`` started, and return the connection to it; raises :class:`NurseryLost`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [_ORDER.pack(b"f", number)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise NurseryLost(f"the process that starts workers is gone ({error})") from None
        return ours

    def kill(self, number: int) -> str:
        """Kill worker ``number`` and all of its process group, and say how it ended; raises :class:`NurseryLost`."""
        try:
            self._control.sendall(_ORDER.pack(b"k", number))
            status = self._control.recv(_STATUS.size)
        except OSError as error:
            raise NurseryLost(f"the process that starts workers does not answer ({error})") from None
        if len(status) < _STATUS.size:
            raise NurseryLost("the process that starts workers is gone")
        code = _STATUS.unpack(status)[0]
        if code >= 0:
            return f"exit status {code}"
        return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"

    def close(self) -> None:
        """End the nursery and with it all workers; safe to call twice."""
        if os.getpid() != self._owner:  # a forked copy of the pool's process owns nothing
            return
        self._control.close()
        try:
            self._process.wait(timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# Inside the nursery ---------------------------------------------------------------------------------------------------


def main(descriptor: str) -> None:
    """Run the nursery on the inherited control socket ``descriptor`` until the pool's process closes it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pool = os.getppid()
    with socket.socket(fileno=int(descriptor)) as control:
        os.set_inheritable(control.fileno(), False)
        header = control.recv(4, socket.MSG_WAITALL)
        if len(header) < 4:
            return
        text, kwargs = marshal.loads(control.recv(struct.unpack("<I", header)[0], socket.MSG_WAITALL))
        spec = EnvSpec.from_json(text)
        trouble = _preload(spec, kwargs)
        gc.collect()
        gc.freeze()  # what is loaded stays shared: collections in the workers do not touch it
        workers: dict[int, int] = {}
        try:
            while os.getppid() == pool:
                if not select.select([control], [], [], 1.0)[0]:
                    continue
                order, descriptors, _, _ = socket.recv_fds(control, _ORDER.size, 1)
                if len(order) < _ORDER.size:
                    return
                what, number = _ORDER.unpack(order)
                if what == b"k":
                    control.sendall(_STATUS.pack(_end(workers.pop(number)) if number in workers else 0))
                    continue
                with socket.socket(fileno=descriptors[0]) as connection:
                    os.set_inheritable(connection.fileno(), False)
                    process = os.fork()
                    if process == 0:
                        control.close()
                        _be_worker(connection, spec, kwargs, trouble)
                    with contextlib.suppress(OSError):
                        os.setpgid(process, process)
                    workers[number] = process
        except OSError:
            pass  # the pool is gone in the middle of an order
        finally:
            for process in workers.values():
                _end(process)


def _preload(spec: EnvSpec, kwargs: Mapping[str, Any]) -> str:
    """Import the environment's module and let it load what all workers shall share; the error's text, or ""."""
    try:
        assert isinstance(spec.entry_point, str)
        preload = getattr(load_env_creator(spec.entry_point), "preload", None)
        if preload is not None:
            preload(**{**spec.kwargs, **kwargs})
    except (Exception, SystemExit) as error:
        return describe(error)
    return ""


def _be_worker(connection: socket.socket, spec: EnvSpec, kwargs: Mapping[str, Any], trouble: str) -> None:
    """The life of a forked worker; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        if trouble:
            connection.sendall(pack((trouble,)))
        else:
            serve(connection, maker(spec, kwargs), os.getpid())
        status = 0
    except BaseException as error:
        print(f"a worker of the pool ended: {describe(error)}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end(process: int) -> int:
    """Kill ``process`` with its group and return its exit code, negative for a signal.

    A worker that has ended is not reaped before, so that its number cannot have passed to a stranger.
    """
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
