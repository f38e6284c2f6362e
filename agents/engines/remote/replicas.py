"""Distribute requests over several servers.

Sessions stay at the server that has cached their prefix. A request that fails at one server is sent to another with the
same seed, which gives the same response. All calls run in one event loop in a separate thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gagpo.agents.engines.base import Finished, Request, Response, Sampling
from gagpo.agents.engines.remote.client import (
    Client,
    MalformedAnswer,
    ReplicaError,
    ReplicaTimeout,
    ReplicaUnreachable,
    RequestRefused,
    StaleWeights,
    Terms,
)
from gagpo.base.errors import GagpoError
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

MOST_FAULTS = 3  # in a row, after which a server is given up
MOST_TRIES = 8  # of one request, at all servers
CHECKS = 3  # health checks of a server within the allowed health_timeout

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

    sessions: sessions assigned to it.
    faults: faults in a row; calls that fail together count once.
    events: all faults, counted in the same way.
    last_error: why it was given up, '' while it is in use.
    calls: requests under way.
    monitor: checks its health.
    """

    number: int
    client: Client
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
    """The servers by number, and the requests under way at them.

    deadline: seconds for one response.
    health_timeout: seconds without a healthy answer after which a server is given up.
    recover: called in the loop if no server is left; admits one again or raises.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        deadline: float,
        health_timeout: float,
        recover: Callable[[], Awaitable[None]] | None = None,
    ):
        self.deadline, self.health_timeout = deadline, health_timeout
        self.counters = ServerCounters()
        self.terms: Terms | None = None  # set when weights have been sent
        self._recover = recover
        self._recovering: asyncio.Task[None] | None = None
        self._assigned: dict[int, Replica] = {}  # by session
        self._tasks: dict[asyncio.Task[Response], Request] = {}
        self._finished: queue.SimpleQueue[asyncio.Task[Response]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vLLM servers", daemon=True)
        self._thread.start()
        self.all = [Replica(number, Client(url, deadline), last_error=NEW) for number, url in enumerate(urls)]
        self._closed = False

    # From the engine's thread -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Run ``work`` in the loop and wait for it."""
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
            while self._tasks:  # wait for the first only
                task = self._finished.get(not finished, timeout)
                if (request := self._tasks.pop(task, None)) is not None:  # not released meanwhile
                    finished.append((request, task.result()))
        except queue.Empty:
            pass
        except BaseException:
            self.run(self._drop(list(self._tasks)))
            raise
        return finished

    def order(self, path: str) -> None:
        """Make the same call at all servers in use, and give up those that fail."""
        for replica in [one for one in self.all if one.alive]:
            try:
                self.run(replica.client.order(path, None, self.deadline))
            except ReplicaError as error:
                self.run(self.withdraw(replica, str(error)))
                self.report_loss(replica, sum(one.alive for one in self.all))

    def is_healthy(self, number: int) -> bool:
        """Whether a server reports that it is healthy, in use or not."""
        try:
            self.run(self.all[number].client.healthy(self.health_timeout))
        except ReplicaError:
            return False
        return True

    def release(self, session: int) -> None:
        """Forget the session and drop its request under way."""
        if session in self._assigned or any(request.session == session for request in self._tasks.values()):
            self.run(self._release(session))

    def close(self) -> None:
        """Drop everything under way and end the thread; may be called twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()

    # In the loop: requests --------------------------------------------------------------------------------------------

    async def _submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        for request in requests:
            task = asyncio.create_task(self._respond(request, sampling))
            self._tasks[task] = request
            task.add_done_callback(self._finished.put)

    async def _respond(self, request: Request, sampling: Sampling) -> Response:
        """Ask until a server responds or refuses, or after :data:`MOST_TRIES`."""
        fault: ReplicaError | None = None
        for attempt in range(MOST_TRIES):
            replica = await self._assign(request)
            self.counters.requests += 1
            self.counters.retries += attempt > 0
            begun = replica.events
            try:
                return await self._call(replica, request, sampling)
            except RequestRefused:
                raise
            except ReplicaError as error:
                fault = error
                await self._record_fault(replica, error, begun)
        raise ReplicasLost(f"no server answered a request in {MOST_TRIES} tries; the last time: {fault}")

    async def _call(self, replica: Replica, request: Request, sampling: Sampling) -> Response:
        """Ask one server, until it is given up."""
        assert self.terms is not None
        call = asyncio.create_task(replica.client.generate(request, sampling, self.terms))
        replica.calls.add(call)
        try:
            response = await call
        except asyncio.CancelledError:
            if replica.alive or asyncio.current_task().cancelling():  # type: ignore[union-attr]
                call.cancel()
                raise  # the request was dropped, not the server
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
        while not (alive := [one for one in self.all if one.alive]):
            await self._wait_for_recovery()
        replica = min(alive, key=lambda one: len(one.sessions))
        replica.sessions.add(request.session)
        self._assigned[request.session] = replica
        return replica

    async def _wait_for_recovery(self) -> None:
        """Wait until a server is back; all requests wait for the same recovery."""
        if self._recover is None:
            raise ReplicasLost(f"no vLLM server is left: {self.last_errors()}")
        if self._recovering is None or self._recovering.done():
            self._recovering = asyncio.ensure_future(self._recover())
        await asyncio.shield(self._recovering)

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
        if isinstance(fault, StaleWeights | ReplicaTimeout) or replica.faults >= MOST_FAULTS:
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
            self.report_loss(replica, sum(one.alive for one in self.all))

    def report_loss(self, replica: Replica, left: int) -> None:
        """Warn that a server was given up. left: servers in use."""
        reason = ascii_only(replica.last_error)[:300]
        LOG.warning("lost the vLLM server %s, %d of %d are left: %s", replica.client.url, left, len(self.all), reason)

    async def withdraw(self, replica: Replica, reason: str) -> None:
        """Take a server out of use, with its sessions and requests."""
        replica.last_error = reason
        for session in replica.sessions:
            self._assigned.pop(session, None)
        replica.sessions.clear()
        if replica.monitor is not None and replica.monitor is not asyncio.current_task():
            replica.monitor.cancel()
        for call in list(replica.calls):
            call.cancel()

    async def admit(self, replica: Replica) -> None:
        """Take a server with the current weights into use, and start checking its health."""
        replica.last_error, replica.faults = "", 0
        replica.monitor = asyncio.create_task(self._monitor(replica))

    async def move(self, replica: Replica, url: str) -> None:
        """Register that the server was restarted at ``url``; it is not in use yet."""
        self.counters.restarts += 1
        await self.withdraw(replica, NEW)
        await replica.client.close()
        replica.client = Client(url, self.deadline)

    async def _monitor(self, replica: Replica) -> None:
        """Give the server up after ``health_timeout`` seconds without a healthy answer."""
        heard = asyncio.get_running_loop().time()
        while replica.alive:
            await asyncio.sleep(self.health_timeout / CHECKS)
            try:
                await replica.client.healthy(self.health_timeout / CHECKS)
                heard = asyncio.get_running_loop().time()
            except ReplicaError as error:
                if asyncio.get_running_loop().time() - heard >= self.health_timeout:
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
