"""Distribute requests over several servers.

Sessions stay at the server that has cached their prefix. A request that fails at one server is sent to another with the
same seed, which gives the same response.

Two threads work here. The engine's thread submits, and waits in ``collect`` for a queue that the loop fills. The loop's
thread runs all calls: one task per request (``_respond``), and one health check per server (``_monitor``), which ends
the calls of a server that hangs. Only the loop changes replicas and sessions; the engine's thread asks for it with
``run`` and waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gagpo.agents.engines.base import Finished, Request, Response, Sampling
from gagpo.agents.engines.remote.client import (
    Client,
    MalformedAnswer,
    ReplicaError,
    ReplicaTimeout,
    ReplicaUnreachable,
    RequestRejected,
    ServedModel,
    StaleWeights,
)
from gagpo.base.errors import GagpoError
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

MAX_FAULTS = 3  # in a row, after which a server is given up
MAX_ATTEMPTS = 8  # of one request, at all servers
CHECKS = 3  # health checks of a server within the allowed health_timeout
CLOSE_SECONDS = 10.0  # for calls under way to be dropped, and for the thread to end

NEW = "it has no weights yet"

T = TypeVar("T")


class ReplicasLost(GagpoError, RuntimeError):
    """No server is left; the message says why each was given up."""


@dataclass
class ServerCounters:
    """Events since the engine was created.

    servers_lost: servers given up.
    timeouts: servers given up because they did not answer in time.
    restarts: servers restarted.
    requests: requests sent.
    retries: requests sent again after a failure.
    broken: malformed answers.
    stale: answers from outdated weights.
    """

    servers_lost: int = 0
    timeouts: int = 0
    restarts: int = 0
    requests: int = 0
    retries: int = 0
    broken: int = 0
    stale: int = 0


@dataclass
class Replica:
    """One server.

    number: its place in the list of the ranks that share it.
    reserve: a home server of another rank, used while no other is left.
    sessions: sessions assigned to it.
    faults: faults in a row; calls that fail together count once.
    events: all faults, counted in the same way.
    last_error: why it was given up, '' while it is in use.
    calls: requests under way.
    monitor: checks its health.
    """

    number: int
    client: Client
    reserve: bool = False
    sessions: set[int] = field(default_factory=set)
    faults: int = 0
    events: int = 0
    last_error: str = ""
    calls: set[asyncio.Task[Response]] = field(default_factory=set)
    monitor: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return not self.last_error


class ReplicaRouter:
    """The servers by number, and the requests under way at them; it works from :meth:`start` to :meth:`close`.

    urls: addresses of the servers by number, those in ``reserve`` last.
    reserve: numbers of servers for requests that no other server is left for.
    deadline: seconds for one response.
    health_timeout: seconds without a healthy answer after which a server is given up.
    recover: called in the loop if no server is left; admits one again or raises.
    """

    def __init__(
        self,
        urls: Mapping[int, str],
        *,
        reserve: Collection[int] = (),
        deadline: float,
        health_timeout: float,
        recover: Callable[[], Awaitable[None]] | None = None,
    ):
        self.deadline = deadline
        self.health_timeout = health_timeout
        self.counters = ServerCounters()
        self._model: ServedModel | None = None
        self._recover = recover
        self._recovering: asyncio.Task[None] | None = None
        self._assigned: dict[int, Replica] = {}  # by session
        self._tasks: dict[asyncio.Task[Response], Request] = {}
        self._finished: queue.SimpleQueue[asyncio.Task[Response]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._urls = dict(urls)
        self._reserve = frozenset(reserve)
        self.all: list[Replica] = []

    def start(self) -> None:
        """Start the thread that runs the loop, and open a client of every server."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vLLM servers", daemon=True)
        self._thread.start()
        self.all = [
            Replica(number, Client(url, self.deadline), number in self._reserve, last_error=NEW)
            for number, url in self._urls.items()
        ]

    # From the engine's thread -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Run ``work`` in the loop and wait for it; the calling thread must not be the loop's."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def under_way(self) -> int:
        """Number of requests that are neither collected nor dropped."""
        return len(self._tasks)

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Send requests."""
        self.run(self._submit(requests, sampling))

    def collect(self, timeout: float | None) -> list[Finished]:
        """Wait for the first finished request, at most ``timeout`` seconds (None: no limit).

        Raises: the error of a request that failed for good; all others are then dropped.
        """
        finished: list[Finished] = []
        try:
            while self._tasks:
                task = self._finished.get(block=not finished, timeout=timeout)  # wait for the first only
                request = self._tasks.pop(task, None)
                if request is not None:  # not released meanwhile
                    finished.append((request, task.result()))
        except queue.Empty:
            pass
        except BaseException:
            self.run(self._drop(list(self._tasks)))
            raise
        return finished

    @property
    def model(self) -> ServedModel:
        """The model and the version of its weights that must answer; set before weights are sent."""
        assert self._model is not None
        return self._model

    @model.setter
    def model(self, model: ServedModel) -> None:
        self._model = model

    @property
    def home(self) -> list[Replica]:
        """The servers that are not in reserve."""
        return [replica for replica in self.all if not replica.reserve]

    @property
    def in_use(self) -> list[Replica]:
        """The servers in use; those in reserve only while no other is left."""
        alive = [replica for replica in self.all if replica.alive]
        return [replica for replica in alive if not replica.reserve] or alive

    def post_to_all(self, path: str) -> None:
        """Make the same call at all home servers in use, and give up those that fail."""
        for replica in [replica for replica in self.home if replica.alive]:
            try:
                self.run(replica.client.post(path, None, self.deadline))
            except ReplicaError as error:
                self.run(self.withdraw(replica, str(error)))
                self.report_loss(replica, len(self.in_use))

    def is_healthy(self, replica: Replica) -> bool:
        """Whether a server reports that it is healthy, in use or not."""
        try:
            self.run(replica.client.healthy(self.health_timeout))
        except ReplicaError:
            return False
        return True

    def release(self, session: int) -> None:
        """Forget the session and drop its request under way."""
        if session in self._assigned or any(request.session == session for request in self._tasks.values()):
            self.run(self._release(session))

    def close(self) -> None:
        """Drop everything under way and end the thread; may be called twice."""
        loop, thread = self._loop, self._thread
        self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)
        if not thread.is_alive():  # a loop that still runs cannot be closed; its thread ends with the process
            loop.close()

    # In the loop: requests --------------------------------------------------------------------------------------------

    async def _submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        for request in requests:
            task = asyncio.create_task(self._respond(request, sampling))
            self._tasks[task] = request
            task.add_done_callback(self._finished.put)

    async def _respond(self, request: Request, sampling: Sampling) -> Response:
        """Ask until a server responds or rejects the request, or after :data:`MAX_ATTEMPTS`."""
        fault: ReplicaError | None = None
        for attempt in range(MAX_ATTEMPTS):
            replica = await self._assign(request)
            self.counters.requests += 1
            self.counters.retries += attempt > 0
            begun = replica.events
            try:
                return await self._call(replica, request, sampling)
            except RequestRejected:
                raise
            except ReplicaError as error:
                fault = error
                await self._record_fault(replica, error, begun)
        raise ReplicasLost(f"no server answered a request in {MAX_ATTEMPTS} attempts", advice=f"the last time: {fault}")

    async def _call(self, replica: Replica, request: Request, sampling: Sampling) -> Response:
        """Ask one server, until it is given up: :meth:`withdraw` then cancels the call, and another server is asked."""
        call = asyncio.create_task(replica.client.generate(request, sampling, self.model))
        replica.calls.add(call)
        try:
            response = await call
        except asyncio.CancelledError:
            # Either the request was dropped, which cancels this task, or the server was, which cancels only the call.
            if replica.alive or asyncio.current_task().cancelling():  # type: ignore[union-attr]
                call.cancel()
                raise
            raise ReplicaUnreachable(replica.last_error) from None
        finally:
            replica.calls.discard(call)
        replica.faults = 0
        return response

    async def _assign(self, request: Request) -> Replica:
        """The server of the session; for a new session the one that has the fewest."""
        replica = self._assigned.get(request.session)
        if replica is not None and replica.alive:
            return replica
        while not self.in_use:
            await self._wait_for_recovery()
        replica = min(self.in_use, key=lambda replica: len(replica.sessions))
        self._watch(replica)
        replica.sessions.add(request.session)
        self._assigned[request.session] = replica
        return replica

    async def _wait_for_recovery(self) -> None:
        """Wait until a server is back; all requests wait for the same recovery."""
        if self._recover is None:
            raise ReplicasLost(f"no vLLM server is left: {self.last_errors()}")
        if self._recovering is None or self._recovering.done():
            self._recovering = asyncio.ensure_future(self._recover())
        await asyncio.shield(self._recovering)  # a dropped request must not cancel the recovery of the others

    def last_errors(self) -> str:
        """Why the servers that are not in use were given up."""
        return "; ".join(f"{replica.client.url}: {replica.last_error}" for replica in self.all if not replica.alive)

    async def _drop(self, tasks: Sequence[asyncio.Task[Response]]) -> None:
        for task in tasks:  # remove it first, so that the result of a cancelled one is ignored
            self._tasks.pop(task, None)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self, session: int) -> None:
        await self._drop([task for task, request in self._tasks.items() if request.session == session])
        replica = self._assigned.pop(session, None)
        if replica is not None:
            replica.sessions.discard(session)

    # In the loop: servers ---------------------------------------------------------------------------------------------

    async def _record_fault(self, replica: Replica, fault: ReplicaError, begun: int) -> None:
        """Give a server up at once, after several faults, or if it is not healthy, depending on the fault.

        begun: the server's ``events`` at the time of the call, so that connections that break together count once.
        """
        if not replica.alive:
            return
        if begun == replica.events:
            replica.faults += 1
            replica.events += 1
        self.counters.stale += isinstance(fault, StaleWeights)
        self.counters.broken += isinstance(fault, MalformedAnswer)
        if isinstance(fault, StaleWeights | ReplicaTimeout) or replica.faults >= MAX_FAULTS:
            await self._give_up(replica, fault)
        elif isinstance(fault, ReplicaUnreachable):
            try:
                await replica.client.healthy(self.health_timeout)
            except ReplicaError as error:
                await self._give_up(replica, error)

    async def _give_up(self, replica: Replica, fault: Exception) -> None:
        """Give a server up and send its requests to others."""
        if replica.alive:
            self.counters.servers_lost += 1
            self.counters.timeouts += isinstance(fault, ReplicaTimeout)
            await self.withdraw(replica, str(fault))
            self.report_loss(replica, len(self.in_use))

    def report_loss(self, replica: Replica, remaining: int) -> None:
        """Warn that a server was given up. remaining: servers in use."""
        reason = ascii_only(replica.last_error)[:300]
        LOG.warning(
            "lost the vLLM server %s, %d of %d are left: %s", replica.client.url, remaining, len(self.all), reason
        )

    async def withdraw(self, replica: Replica, reason: str) -> None:
        """Take a server out of use, with its sessions and requests."""
        replica.last_error = reason
        for session in replica.sessions:
            self._assigned.pop(session, None)
        replica.sessions.clear()
        if replica.monitor is not None and replica.monitor is not asyncio.current_task():  # it may be the caller
            replica.monitor.cancel()
        replica.monitor = None
        for call in list(replica.calls):
            call.cancel()

    async def admit(self, replica: Replica) -> None:
        """Take a server with the current weights into use, and start checking its health.

        Those in reserve are checked from the first request on: of many ranks and servers, most never serve each other.
        """
        replica.last_error = ""
        replica.faults = 0
        if not replica.reserve:
            self._watch(replica)

    def _watch(self, replica: Replica) -> None:
        if replica.monitor is None or replica.monitor.done():
            replica.monitor = asyncio.create_task(self._monitor(replica))

    async def move(self, replica: Replica, url: str) -> None:
        """Register that the server was started again at ``url``; it is not in use yet."""
        await self.withdraw(replica, NEW)
        await replica.client.close()
        replica.client = Client(url, self.deadline)

    async def _monitor(self, replica: Replica) -> None:
        """Give the server up after ``health_timeout`` seconds without a healthy answer."""
        clock = asyncio.get_running_loop().time
        last_healthy = clock()
        while replica.alive:
            await asyncio.sleep(self.health_timeout / CHECKS)
            try:
                await replica.client.healthy(self.health_timeout / CHECKS)
                last_healthy = clock()
            except ReplicaError as error:
                if clock() - last_healthy >= self.health_timeout:
                    await self._give_up(
                        replica, ReplicaTimeout(f"it was silent for {self.health_timeout:g} s: {error}")
                    )

    async def _close(self) -> None:
        await self._drop(list(self._tasks))
        monitors = [replica.monitor for replica in self.all if replica.monitor is not None]
        for monitor in monitors:
            monitor.cancel()
        await asyncio.gather(*monitors, return_exceptions=True)
        for replica in self.all:
            await replica.client.close()
