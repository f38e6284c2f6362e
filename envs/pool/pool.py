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
from gagpo.envs.pool.link import Link, Resources
from gagpo.envs.pool.slots import Assignment, BasePool, Event, Holder
from gagpo.envs.pool.wire import TOKEN_BYTES, describe, plain
from gagpo.envs.pool.worker import Answer, Host, is_answer, maker

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
            raise InvalidArgument(f"workers and max_restarts must not be negative, got {workers} and {max_restarts}")
        if not (0 < step_timeout < math.inf and 0 < reset_timeout < math.inf):
            raise InvalidArgument(f"deadlines must be positive seconds, got {step_timeout} and {reset_timeout}")
        if memory_limit_mb is not None and memory_limit_mb < 1:
            raise InvalidArgument(f"memory_limit_mb must be at least 1, got {memory_limit_mb}")
        self._deadlines = {"step": step_timeout, "reset": reset_timeout, "start": max(reset_timeout, START_SECONDS)}
        self._failed_starts = 0  # in a row
        self._start_error = ""
        self._started = False  # some worker has built its environment
        self._host: Host | None = None
        self._fork_server = ForkServer(self._spec, self._kwargs, memory_limit_mb)
        if workers:
            self._fork_server.start()
        self._resources = Resources(self._fork_server)
        self._finalizer = weakref.finalize(self, self._resources.close)
        self._links = self._resources.links
        links = [Link(number, self._resources.selector) for number in range(workers)]
        super().__init__(links or [Holder()], max_restarts)
        for link in links:
            self._start(link)
        if not workers:
            try:
                self._host = Host(maker(self._spec, self._kwargs), own_process=False)
            except (Exception, SystemExit) as error:
                if is_termination(error):
                    raise
                self._give_up(describe(error))

    def flush(self) -> None:
        for link in self._links.values():
            link.send()

    def wake(self) -> None:
        """End the current or next ``wait`` early. May be called from any thread."""
        with suppress(OSError):  # many calls are pending, or the pool is closed
            self._resources.waker.send(b"!")

    @property
    def processes(self) -> list[int]:
        """The process ids of the running workers."""
        return [link.process for link in list(self._links.values()) if link.process is not None]

    def close(self) -> None:
        """Close all environments and end all processes, by force if they take more than 5 seconds; idempotent."""
        super().close()
        self._finalizer()
        if self._host is not None:
            self._host.close()

    def _declares_limit(self) -> bool:
        return turn_limit(self.env_id, self._kwargs) is not None

    # Requests and answers ---------------------------------------------------------------------------------------------

    def _collect(self, end: float, block: bool) -> None:
        if self._host is not None:
            self._run_here(self._host, end)
            return
        links = list(self._links.values())
        until = min(end, *map(self._deadline, links)) if block else 0.0
        patience = None if until == math.inf else max(0.0, until - time.monotonic())
        for key, mask in self._resources.selector.select(patience):
            if key.data is None:
                self._woken = bool(self._resources.woken.recv(1 << 12))
                continue
            if mask & selectors.EVENT_WRITE:
                key.data.send()
            if mask & selectors.EVENT_READ:
                self._read(key.data)
        now = time.monotonic()
        for link in links:
            if now > self._deadline(link):
                self._replace(link, "hung")

    def _run_here(self, host: Host, end: float) -> None:
        (here,) = self._holders
        while here.outbox:
            operation, number, *arguments = here.outbox.pop(0)
            message = host.handle((operation, number, *arguments))
            if message is not None and number in here.held:
                self._take(here.held[number], message)
            if time.monotonic() >= end:
                return

    def _read(self, link: Link) -> None:
        messages, alive = link.receive()
        known = link.process is not None or not messages or self._handshake(link, messages.pop(0))
        if not known or len(messages) > link.sent or not self._answer(link, messages) or link.garbled:
            self._replace(link, "garbled")
        elif not alive:
            self._replace(link, "died")

    def _handshake(self, link: Link, message: object) -> bool:
        """Take a worker's first message: its process id, or an error; return whether it was valid."""
        content = message[0] if type(message) is tuple and len(message) == 1 else None
        if type(content) is int and _leads_group(content):
            link.process = content
            self._started = True
            self._failed_starts = 0
        elif type(content) is not str:
            return False
        elif self._started:
            self._start_error = content  # it built one before: worth another try
        else:
            self._give_up(content)
        return True

    def _answer(self, link: Link, messages: list[object]) -> bool:
        """Take answers to the worker's oldest requests, up to the first invalid one; return whether all were valid."""
        for message in messages:
            # Answers come in the order of the requests, also for slots that have moved on.
            assignment = link.queue[0]
            if not is_answer(message, assignment.pending):
                return False
            link.queue.popleft()
            link.sent -= 1
            if assignment.number in link.held:
                self._take(assignment, message)
        return True

    def _take(self, assignment: Assignment, message: Answer) -> None:
        """Turn an answer into an event, or restart an episode that broke."""
        if len(message) == 5:
            self._deliver(assignment, Event(assignment.slot, "step", *message))
        elif len(message) == 2:
            observation, info = message
            self._deliver(assignment, Event(assignment.slot, "reset", observation, 0.0, False, False, info))
        else:
            self.counters.errors += 1
            assignment.charges += 1
            self._start_over(assignment, message[0])

    # Worker processes -------------------------------------------------------------------------------------------------

    def _deadline(self, link: Link) -> float:
        """The deadline (``time.monotonic``) of the worker's start or current request."""
        if link.process is None:
            return link.since + self._deadlines["start"]
        return link.since + self._deadlines[link.queue[0].pending] if link.sent else math.inf

    def _give_up(self, error: str) -> NoReturn:
        self.close()
        raise EnvironmentBroken(f"environment {self.env_id!r} cannot be built: {error}")

    def _start(self, link: Link) -> None:
        while True:
            try:
                token = secrets.token_bytes(TOKEN_BYTES)
                connection = self._fork_server.fork(link.number, token)
                break
            except ForkServerLost as error:
                self._end_fork_server(str(error))
        link.connect(connection, token)
        self._links[link.number] = link

    def _end_fork_server(self, error: str) -> None:
        """End a lost fork server and its workers; the next start makes a new one."""
        self._count_failed_start(error)
        for process in self.processes:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        self._fork_server.close()

    def _count_failed_start(self, error: str) -> None:
        self._failed_starts += 1
        if self._failed_starts > self._max_restarts:
            self._give_up(error)

    def _replace(self, link: Link, fault: Literal["died", "hung", "garbled"]) -> None:
        """Kill a broken worker, start another, and restart its episodes.

        The episode of its current request is charged; without one, all its episodes are, so that restarts end.
        """
        del self._links[link.number]
        link.close()
        try:
            end = self._fork_server.kill(link.number)
        except ForkServerLost as lost:
            end = "unknown how"
            self._end_fork_server(str(lost))
        if fault == "hung":
            present = "start" if link.process is None else link.queue[0].pending
            self.counters.hangs += 1
            error = f"its worker was killed: {present} took more than {self._deadlines[present]:g} s"
        else:
            self.counters.crashes += 1
            garbled = "its worker was killed: it sent an invalid answer"
            error = garbled if fault == "garbled" else f"its worker died ({end})"
        if link.process is None:
            self._count_failed_start(self._start_error or error)
            charged = []
        else:
            charged = [link.queue[0]] if link.sent else list(link.held.values())
        self._start(link)
        self._start_all_over(link, error, charged)


def _leads_group(process: int) -> bool:
    """Whether ``process`` leads another process group, as a worker does, even a dead one."""
    try:
        return process > 1 and os.getpgid(process) == process != os.getpgrp()
    except (OSError, OverflowError):
        return False
