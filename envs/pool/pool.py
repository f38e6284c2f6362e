"""A pool of worker processes that step many environments at once.

    with WorkerPool("gagpo/ALFWorld-v0", workers=2) as pool:
        for slot, task in enumerate(tasks):
            pool.reset(slot, task.id, seed=slot)
        while running:
            for event in pool.wait():
                pool.step(event.slot, choose(event.observation))

For the contract see :mod:`gagpo.envs.pool.slots`. A worker that crashes or exceeds a deadline is replaced, and its
episodes start over.
"""

from __future__ import annotations

import math
import os
import secrets
import selectors
import signal
import time
import weakref
from contextlib import suppress
from typing import Literal, NoReturn

from gagpo.base.errors import GagpoError, InvalidArgument, is_termination
from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import find_spec, is_cheap, turn_limit
from gagpo.envs.pool.fork_server import ForkServer, ForkServerLost
from gagpo.envs.pool.process_worker import PoolResources, ProcessWorker
from gagpo.envs.pool.slots import BasePool, Event, SlotEpisode, Worker
from gagpo.envs.pool.wire import TOKEN_BYTES, describe, plain
from gagpo.envs.pool.worker import Answer, EnvironmentHost, is_answer, maker

WORKERS = 2  # processes by default
START_SECONDS = 60.0  # the least deadline for a worker to build its first environment


class EnvironmentBroken(GagpoError, ValueError):
    """No worker can start: the environment cannot be built."""


class WorkerPool(BasePool):
    """Steps environments in worker processes, or in this process if ``workers`` is 0. For one thread only.

    Workers build one environment per slot in use, and reuse it for later episodes. An environment's class method
    ``preload(**kwargs)``, if it has one, runs once before the workers are forked, so that they share what it loads.

    env_id: a registered id, or ``"module:Name-v0"`` to import a module that registers it.
    env_kwargs: arguments of the environment, plain data.
    workers: number of processes. With 0 a hanging environment cannot be killed. ``auto`` is 0 for environments that
        are faster than a message to another process (:func:`gagpo.envs.lookup.is_cheap`), else 2.
    step_timeout: seconds for a step.
    reset_timeout: seconds for a reset, and (at least a minute) for the start of a worker.
    max_restarts: how often one episode may start over.
    memory_limit_mb: MiB that a worker and its children may take beyond what it shares with the others; None for no
        limit. An allocation beyond it fails (Linux only).

    Raises:
        ValueError: a setting is out of range.
        EnvironmentBroken: from ``wait``, or the constructor if ``workers`` is 0.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Kwargs | None = None,
        *,
        workers: int | Literal["auto"] = WORKERS,
        step_timeout: float = 60,
        reset_timeout: float = 300,
        max_restarts: int = 3,
        memory_limit_mb: int | None = None,
    ):
        self.env_id = env_id
        self._spec = find_spec(env_id)
        self._kwargs = plain(dict(env_kwargs or {}), "env_kwargs")
        if workers == "auto":
            workers = 0 if is_cheap(self._spec, self._kwargs) else WORKERS
        if workers < 0 or max_restarts < 0:
            raise InvalidArgument(
                f"workers and max_restarts must not be negative, got {workers} and {max_restarts}", key="workers"
            )
        if not (0 < step_timeout < math.inf and 0 < reset_timeout < math.inf):
            raise InvalidArgument(
                f"deadlines must be positive seconds, got {step_timeout} and {reset_timeout}", key="deadlines"
            )
        if memory_limit_mb is not None and memory_limit_mb < 1:
            raise InvalidArgument(f"memory_limit_mb must be at least 1, got {memory_limit_mb}", key="memory_limit_mb")
        self._deadlines = {"step": step_timeout, "reset": reset_timeout, "start": max(reset_timeout, START_SECONDS)}
        self._num_failed_starts = 0  # in a row
        self._start_error = ""
        self._has_started = False  # some worker has built its environment
        self._host: EnvironmentHost | None = None
        self._fork_server = ForkServer(self._spec, self._kwargs, memory_limit_mb)
        if workers:
            self._fork_server.start()
        self._resources = PoolResources(self._fork_server)
        self._finalizer = weakref.finalize(self, self._resources.close)
        self._worker_by_number = self._resources.workers  # those with a process
        process_workers = [ProcessWorker(number, self._resources.selector) for number in range(workers)]
        super().__init__(process_workers or [Worker()], max_restarts)
        for worker in process_workers:
            self._start(worker)
        if not workers:
            try:
                self._host = EnvironmentHost(maker(self._spec, self._kwargs), isolated=False)
            except (Exception, SystemExit) as error:
                if is_termination(error):
                    raise
                self._give_up(describe(error))

    def flush(self) -> None:
        for worker in self._worker_by_number.values():
            worker.send()

    def wake(self) -> None:
        """End the current or next ``wait`` early. May be called from any thread."""
        with suppress(OSError):  # many calls are pending, or the pool is closed
            self._resources.wake_sender.send(b"!")

    @property
    def processes(self) -> list[int]:
        """The process ids of the running workers."""
        return [worker.process for worker in list(self._worker_by_number.values()) if worker.process is not None]

    def close(self) -> None:
        """Close all environments and end all processes, by force if they take more than 5 seconds; idempotent."""
        super().close()
        self._finalizer()
        if self._host is not None:
            self._host.close()

    def _declares_limit(self) -> bool:
        return turn_limit(self.env_id, self._kwargs) is not None

    # Requests and answers ---------------------------------------------------------------------------------------------

    def _collect(self, deadline: float, block: bool) -> None:
        if self._host is not None:
            self._run_here(self._host, deadline)
            return
        workers = list(self._worker_by_number.values())
        # Wait for whatever comes first: an answer, wake(), the caller's deadline or that of a worker.
        wait_until = min(deadline, *map(self._deadline, workers)) if block else 0.0
        timeout = None if wait_until == math.inf else max(0.0, wait_until - time.monotonic())
        for key, mask in self._resources.selector.select(timeout):
            if key.data is None:  # wake() was called
                self._is_woken = bool(self._resources.wake_receiver.recv(1 << 12))
                continue
            if mask & selectors.EVENT_WRITE:
                key.data.send()
            if mask & selectors.EVENT_READ:
                self._read(key.data)
        now = time.monotonic()
        for worker in workers:
            if now > self._deadline(worker):
                self._replace(worker, "hung")

    def _run_here(self, host: EnvironmentHost, deadline: float) -> None:
        (worker,) = self._workers
        while worker.outbox:
            operation, number, *arguments = worker.outbox.pop(0)
            message = host.handle((operation, number, *arguments))
            if message is not None and number in worker.episodes:
                self._take(worker.episodes[number], message)
            if time.monotonic() >= deadline:
                return

    def _read(self, worker: ProcessWorker) -> None:
        """Take the messages of a worker, and replace it if one of them is invalid or its connection ended."""
        messages, is_alive = worker.receive()
        is_valid = True
        if worker.process is None and messages:
            is_valid = self._handshake(worker, messages.pop(0))
        # More answers than requests: the environment wrote into the connection.
        is_valid = is_valid and len(messages) <= worker.num_sent and self._answer(worker, messages)
        if not is_valid or worker.corrupt:
            self._replace(worker, "corrupt")
        elif not is_alive:
            self._replace(worker, "died")

    def _handshake(self, worker: ProcessWorker, message: object) -> bool:
        """Take a worker's first message: its process id, or an error; return whether it was valid."""
        content = message[0] if type(message) is tuple and len(message) == 1 else None
        if type(content) is int and _leads_group(content):
            worker.process = content
            self._has_started = True
            self._num_failed_starts = 0
        elif type(content) is not str:
            return False
        elif self._has_started:
            self._start_error = content  # other workers could build their environment: worth another attempt
        else:
            self._give_up(content)
        return True

    def _answer(self, worker: ProcessWorker, messages: list[object]) -> bool:
        """Take answers to the worker's oldest requests, up to the first invalid one; return whether all were valid."""
        for message in messages:
            # Answers come in the order of the requests, also for slots that have moved on.
            episode = worker.queue[0]
            if not is_answer(message, episode.pending):
                return False
            worker.queue.popleft()
            worker.num_sent -= 1
            if episode.number in worker.episodes:
                self._take(episode, message)
        return True

    def _take(self, episode: SlotEpisode, message: Answer) -> None:
        """Turn an answer into an event, or restart an episode that broke."""
        if len(message) == 5:
            self._deliver(episode, Event(episode.slot, "step", *message))
        elif len(message) == 2:
            observation, info = message
            self._deliver(episode, Event(episode.slot, "reset", observation, 0.0, False, False, info))
        else:
            self.counters.errors += 1
            episode.failures += 1
            self._start_over(episode, message[0])

    # Worker processes -------------------------------------------------------------------------------------------------

    def _deadline(self, worker: ProcessWorker) -> float:
        """The deadline (``time.monotonic``) of the worker's start or current request."""
        if worker.process is None:
            return worker.request_started_at + self._deadlines["start"]
        return worker.request_started_at + self._deadlines[worker.queue[0].pending] if worker.num_sent else math.inf

    def _give_up(self, error: str) -> NoReturn:
        self.close()
        raise EnvironmentBroken(f"environment {self.env_id!r} cannot be built: {error}")

    def _start(self, worker: ProcessWorker) -> None:
        """Fork a process for the worker, from a new fork server if the current one is lost."""
        while True:
            try:
                token = secrets.token_bytes(TOKEN_BYTES)
                connection = self._fork_server.fork(worker.number, token)
                break
            except ForkServerLost as error:
                self._end_fork_server(str(error))
        worker.connect(connection, token)
        self._worker_by_number[worker.number] = worker

    def _end_fork_server(self, error: str) -> None:
        """End a lost fork server and its workers; the next start makes a new one.

        The workers die with the fork server. Their connections close then, so each is replaced in its turn.
        """
        self._count_failed_start(error)
        for process in self.processes:  # in case it hangs instead of having died
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        self._fork_server.close()

    def _count_failed_start(self, error: str) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts > self._max_restarts:
            self._give_up(error)

    def _replace(self, worker: ProcessWorker, fault: Literal["died", "hung", "corrupt"]) -> None:
        """Kill a broken worker, start another, and restart its episodes.

        The episode of its current request counts a failure. Without a request, all its episodes do: any of them may
        have broken it between two requests, and the number of restarts must stay bounded.
        """
        del self._worker_by_number[worker.number]
        worker.close()
        try:
            exit_description = self._fork_server.kill(worker.number)
        except ForkServerLost as loss:
            exit_description = "unknown how"
            self._end_fork_server(str(loss))
        if fault == "hung":
            operation = "start" if worker.process is None else worker.queue[0].pending
            self.counters.hangs += 1
            error = f"its worker was killed: {operation} took more than {self._deadlines[operation]:g} s"
        else:
            self.counters.crashes += 1
            error = f"its worker died ({exit_description})"
            if fault == "corrupt":
                error = "its worker was killed: it sent an invalid answer"
        if worker.process is None:
            self._count_failed_start(self._start_error or error)
            suspects = []
        elif worker.num_sent:
            suspects = [worker.queue[0]]
        else:
            suspects = list(worker.episodes.values())
        self._start(worker)
        self._start_all_over(worker, error, suspects)


def _leads_group(process: int) -> bool:
    """Whether ``process`` leads another process group, as a worker does, even a dead one.

    The id comes from the worker, which an environment may impersonate, and the pool kills the group that it names.
    """
    try:
        return process > 1 and os.getpgid(process) == process != os.getpgrp()
    except (OSError, OverflowError):
        return False
