"""Processes that step environments: many episodes each, the caller gets whichever answer first.

    with Pool("gagpo/ALFWorld-v0", workers=2) as pool:
        for slot, task in enumerate(tasks):
            pool.reset(slot, task.id, seed=slot)
        while running:
            for event in pool.wait():
                pool.step(event.slot, choose(event.observation))

The contract is one sentence: **every reset and every step is answered by exactly one event.** A worker that crashes or
exceeds a deadline is killed and replaced, and the episodes it held start over; an environment that raises or returns
garbage makes only its own episode start over. Either way the event that answers is ``restarted`` and holds the first
observation of the same task with the same seed: drop the episode's turns so far. An episode that broke more than
``max_restarts`` times ends with ``failed``.
"""

from __future__ import annotations

import math
import os
import secrets
import selectors
import signal
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NoReturn

from gagpo.envs.errors import GagpoError, InvalidArgument
from gagpo.envs.lookup import find_spec
from gagpo.envs.pool.assignments import Episode, Worker
from gagpo.envs.pool.events import Counters, Event
from gagpo.envs.pool.fork_server import ForkServer, ForkServerLost
from gagpo.envs.pool.link import Link, Resources
from gagpo.envs.pool.wire import TOKEN_BYTES, describe, plain
from gagpo.envs.pool.worker import Host, answers, maker

__all__ = ["Counters", "EnvironmentBroken", "Event", "Pool"]

START_SECONDS = 60.0  # a worker has at least so long to import, preload and build its first environment
_COALESCE_SECONDS = 0.001  # a caller who wants many answers is not woken for each


class EnvironmentBroken(GagpoError, ValueError):
    """No worker can start: the environment's settings are wrong, or its constructor breaks every time."""


class Pool:
    """Steps environments in ``workers`` processes; with ``workers=0`` in this one, where nothing can be killed.

    env_id: a registered id, or ``"module:Name-v0"`` to import a module that registers it. env_kwargs: plain data.
    step_deadline, reset_deadline: seconds that one request may take once its worker has come to it; a worker may take
    the second one, or a minute, to start. max_restarts: how often one episode may break before it is given up.
    memory_limit_mb: how much memory (MiB) a worker may take, with what it starts, beyond what it shares with the
    others; None for no limit. An allocation beyond it fails, and the episode that made it is charged (Linux only).

    Environments are built in the workers, one per slot in use, and are reused by later episodes. A class may offer
    ``preload(**kwargs)``, a class method run once before the workers are forked: what it loads is shared by all.

    Raises ValueError for settings that cannot be right; :class:`EnvironmentBroken` comes from ``wait`` (from the
    constructor when ``workers=0``) as soon as the environment turns out impossible to build. For one thread only.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        workers: int = 2,
        step_deadline: float = 60,
        reset_deadline: float = 300,
        max_restarts: int = 3,
        memory_limit_mb: int | None = None,
    ):
        if workers < 0 or max_restarts < 0:
            raise InvalidArgument(f"workers and max_restarts must not be negative, got {workers} and {max_restarts}")
        if not (0 < step_deadline < math.inf and 0 < reset_deadline < math.inf):
            raise InvalidArgument(f"deadlines must be positive seconds, got {step_deadline} and {reset_deadline}")
        if memory_limit_mb is not None and memory_limit_mb < 1:
            raise InvalidArgument(f"memory_limit_mb must be at least 1, got {memory_limit_mb}")
        self.env_id = env_id
        self.counters = Counters()
        self._spec = find_spec(env_id)
        self._kwargs = plain(dict(env_kwargs or {}), "env_kwargs")
        self._deadlines = {"step": step_deadline, "reset": reset_deadline, "start": max(reset_deadline, START_SECONDS)}
        self._max_restarts = max_restarts
        self._memory_limit_mb = memory_limit_mb
        self._episodes: dict[int, Episode] = {}
        self._ready: list[Event] = []
        self._outstanding = 0
        self._failed_starts = 0  # in a row
        self._start_error = ""
        self._started = False  # some worker has once built its environment
        self._closed = False
        self._host: Host | None = None
        self._workers = [Worker(number) for number in range(max(workers, 1))]
        self._resources = Resources(self._make_fork_server() if workers else None)
        self._links = self._resources.links
        self._finalizer = weakref.finalize(self, self._resources.close)
        if workers:
            for worker in self._workers:
                self._start(worker)
            return
        try:
            self._host = Host(maker(self._spec, self._kwargs))
        except (Exception, SystemExit) as error:
            self._give_up(describe(error))

    # What the caller asks ---------------------------------------------------------------------------------------------

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        """Start ``task`` in ``slot`` (any non-negative int), ending whatever runs there; answered by one event."""
        self._check_open()
        if slot < 0:
            raise InvalidArgument(f"a slot is a non-negative number, got {slot}")
        old = self._episodes.get(slot)
        if old is None:
            worker = min(self._workers, key=lambda worker: worker.load)
            worker.load += 1
        else:
            worker = old.worker
            self._outstanding -= old.pending
        episode = self._episodes[slot] = Episode(slot, task, seed, worker)
        self._outstanding += 1
        self._request_reset(episode)

    def step(self, slot: int, action: str) -> None:
        """Carry out ``action`` in ``slot``; answered by one event.

        Raises ValueError when no episode runs there or its last request is not answered yet.
        """
        episode = self._episodes.get(slot)
        if episode is None or not episode.live:
            self._refuse(slot, episode)
            return
        if type(action) is not str:
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        episode.live = False
        episode.pending = True
        self._outstanding += 1
        if episode.lost:
            self._start_over(episode, episode.error)
            return
        episode.worker.queue.append((episode, "step"))
        episode.worker.outbox.append(("step", slot, action))

    def release(self, slot: int) -> None:
        """Give up ``slot`` and whatever runs there; its environment serves the next slot. A free slot stays free."""
        episode = self._episodes.pop(slot, None)
        if episode is not None:
            self._outstanding -= episode.pending
            episode.worker.load -= 1
            episode.worker.outbox.append(("release", slot))

    def flush(self) -> None:
        """Hand all requests to the workers now, so that they run while the caller does something else."""
        for number, link in self._links.items():
            worker = self._workers[number]
            if worker.outbox or link.clogged:
                if link.process is not None and not worker.sent:
                    worker.since = time.monotonic()
                worker.sent = len(worker.queue)
                link.send(worker.outbox)
                worker.outbox.clear()

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        """The events that have come, as soon as there are ``at_least`` of them.

        Returns earlier after ``timeout`` seconds (None: no limit but the deadlines), or when fewer requests than that
        are unanswered: ``[]`` at once when nothing is. A larger ``at_least`` costs latency and saves wake-ups.
        """
        self._check_open()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self.flush()
            if self._host is not None:
                self._run_here(self._host, end)
            elif self._outstanding and len(self._ready) < at_least:
                self._collect(min(end, min(map(self._deadline, self._workers))))
            else:
                self._collect(0.0)
            if len(self._ready) >= at_least or not self._outstanding or time.monotonic() >= end:
                self.flush()  # episodes that start over
                events, self._ready = self._ready, []
                return events
            if at_least - len(self._ready) > 1:
                time.sleep(_COALESCE_SECONDS)

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers that are up."""
        return [link.process for link in self._links.values() if link.process is not None]

    def close(self) -> None:
        """Close all environments and end all processes, by force where they take more than 5 seconds; idempotent."""
        self._closed = True
        self._finalizer()
        if self._host is not None:
            self._host.close()
        self._episodes.clear()
        self._ready.clear()
        self._outstanding = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the pool is closed")

    def _refuse(self, slot: int, episode: Episode | None) -> None:
        self._check_open()
        if episode is None:
            raise InvalidArgument(f"slot {slot} holds no episode: reset it before stepping")
        if episode.pending:
            raise InvalidArgument(f"slot {slot} has not answered its last request: wait for its event before stepping")
        raise InvalidArgument(f"the episode in slot {slot} is over: reset it before stepping")

    # Requests and answers ---------------------------------------------------------------------------------------------

    def _request_reset(self, episode: Episode) -> None:
        episode.worker.queue.append((episode, "reset"))
        episode.worker.outbox.append(("reset", episode.slot, episode.task, episode.seed))

    def _answer(self, worker: Worker, messages: list[tuple[Any, ...]]) -> bool:
        """Turn answers to the worker's oldest requests into events, but for those that nobody waits for any more.

        Returns whether they were answers at all; the requests of the first that is none, and of the rest, stay.
        """
        for message in messages:
            episode, operation = worker.queue[0]
            if not answers(message, operation):
                return False
            worker.queue.popleft()
            worker.sent -= 1
            slot = episode.slot
            if self._episodes.get(slot) is not episode:
                continue
            if len(message) == 5:
                self.counters.steps += 1
                episode.live = not (message[2] or message[3])
                event = Event(slot, "step", *message)
            elif len(message) == 2:
                self.counters.resets += 1
                observation, info = message
                episode.live = True
                kind = "restarted" if episode.error else "reset"
                event = Event(slot, kind, observation, 0.0, False, False, info, episode.error)
                episode.error = ""
            else:
                self.counters.errors += 1
                episode.charges += 1
                self._start_over(episode, message[0])
                continue
            episode.pending = False
            self._outstanding -= 1
            self._ready.append(event)
        return True

    def _start_over(self, episode: Episode, error: str) -> None:
        """Answer a pending episode's request by a restart, or by ``failed`` when it has broken too often."""
        if episode.charges <= self._max_restarts:
            self.counters.restarts += 1
            episode.lost = False
            episode.error = error
            self._request_reset(episode)
            return
        self.counters.failures += 1
        self._ready.append(Event(episode.slot, "failed", "", 0.0, False, False, {}, error))
        self.release(episode.slot)

    def _run_here(self, host: Host, end: float) -> None:
        worker = self._workers[0]
        while worker.outbox:
            message = host.handle(worker.outbox.pop(0))
            if message is not None:
                worker.sent += 1
                self._answer(worker, [message])
            if time.monotonic() >= end:
                return

    # Worker processes -------------------------------------------------------------------------------------------------

    def _deadline(self, worker: Worker) -> float:
        """When the worker's start, or its present request, will have taken too long (``time.monotonic``)."""
        if self._links[worker.number].process is None:
            return worker.since + self._deadlines["start"]
        return worker.since + self._deadlines[worker.queue[0][1]] if worker.sent else math.inf

    def _collect(self, until: float) -> None:
        """Read what the workers say, waiting for it at most ``until``, and replace those that died or are overdue."""
        patience = None if until == math.inf else max(0.0, until - time.monotonic())
        for key, mask in self._resources.selector.select(patience):
            if mask & selectors.EVENT_WRITE:
                self._links[key.data].send([])
            if mask & selectors.EVENT_READ:
                self._read(self._workers[key.data])
        now = time.monotonic()
        for worker in self._workers:
            if now > self._deadline(worker):
                self._replace(worker, "hung")

    def _read(self, worker: Worker) -> None:
        link = self._links[worker.number]
        messages, alive = link.receive()
        worker.since = time.monotonic()
        if messages and link.process is None and not self._greet(link, messages.pop(0)):
            self._replace(worker, "lied")
            return
        if len(messages) > worker.sent or not self._answer(worker, messages):
            self._replace(worker, "lied")
        elif not alive:
            self._replace(worker, "lied" if link.nonsense else "died")

    def _greet(self, link: Link, message: Any) -> bool:
        """Take a worker's first message: its process id, or why it cannot build its environment.

        Returns whether it was such a message.
        """
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

    def _give_up(self, error: str) -> NoReturn:
        self.close()
        raise EnvironmentBroken(f"environment {self.env_id!r} cannot be built: {error}")

    def _start(self, worker: Worker) -> None:
        while True:
            try:
                token = secrets.token_bytes(TOKEN_BYTES)
                connection = self._fork_server.fork(worker.number, token)
                break
            except ForkServerLost as error:
                self._new_fork_server(str(error))
        self._links[worker.number] = Link(connection, token, self._resources.selector, worker.number)

    @property
    def _fork_server(self) -> ForkServer:
        assert self._resources.fork_server is not None
        return self._resources.fork_server

    def _make_fork_server(self) -> ForkServer:
        return ForkServer(self._spec, self._kwargs, self._memory_limit_mb)

    def _new_fork_server(self, error: str) -> None:
        """Replace a lost fork_server. Its workers end too: nobody would guard them."""
        self._count_failed_start(error)
        for process in self.processes:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
        self._fork_server.close()
        self._resources.fork_server = self._make_fork_server()

    def _count_failed_start(self, error: str) -> None:
        self._failed_starts += 1
        if self._failed_starts > self._max_restarts:
            self._give_up(error)

    def _replace(self, worker: Worker, fault: Literal["died", "hung", "lied"]) -> None:
        """Kill what is left of a broken worker, start another, and have its episodes start over.

        The episode of the request it was at is charged. When it died at none, all its episodes are: any of them may
        have left something behind that killed it, and nothing may go round for ever.
        """
        link = self._links.pop(worker.number)
        link.close()
        try:
            end = self._fork_server.kill(worker.number)
        except ForkServerLost as lost:
            end = "unknown how"
            self._new_fork_server(str(lost))
        if fault == "hung":
            present = "start" if link.process is None else worker.queue[0][1]
            self.counters.hangs += 1
            error = f"its worker was killed: {present} took more than {self._deadlines[present]:g} s"
        else:
            self.counters.crashes += 1
            lied = "its worker was killed: it sent what is no answer"
            error = lied if fault == "lied" else f"its worker died ({end})"
        held = [episode for episode in self._episodes.values() if episode.worker is worker]
        unanswered = [(episode, op) for episode, op in worker.queue if self._episodes.get(episode.slot) is episode]
        if link.process is None:
            self._count_failed_start(self._start_error or error)
            guilty = []
        else:
            guilty = [worker.queue[0][0]] if worker.sent else held
        worker.forget()
        self._start(worker)
        for episode in held:
            episode.charges += episode in guilty
            if episode.live:
                episode.lost = True
                episode.error = error
        for episode, operation in unanswered:
            if operation == "reset" and episode not in guilty:
                self._request_reset(episode)  # not begun: nothing to start over
            else:
                self._start_over(episode, error)


def _leads_group(process: int) -> bool:
    """Whether ``process`` leads a process group other than ours, as a worker does; a dead one does too."""
    try:
        return process > 1 and os.getpgid(process) == process != os.getpgrp()
    except (OSError, OverflowError):
        return False
