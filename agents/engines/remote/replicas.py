"""Requests dealt out over several servers: sessions stay where their prefix is cached, nothing is lost with a server.

Everything here runs in one event loop, in a thread of its own; the engine's thread hands requests in and takes finished
ones out of a queue. A request that a server failed is asked again elsewhere with the same seed: what comes is the
response that would have come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gagpo.agents.engines.base import Finished, Request, Response, Sampling
from gagpo.agents.engines.remote.client import Client
from gagpo.agents.engines.remote.kinds.base import Order, ServerKind
from gagpo.agents.engines.remote.prefixes import PrefixTable
from gagpo.agents.engines.remote.wire import (
    MalformedAnswer,
    ReplicaError,
    ReplicaTimeout,
    ReplicaUnreachable,
    RequestRefused,
    StaleWeights,
    Terms,
    UnsuitableServer,
)
from gagpo.base.errors import GagpoError
from gagpo.base.tables import ascii_only

LOG = logging.getLogger("gagpo")

MOST_FAULTS = 3  # faults in a row after which a server that still answers is given up
MOST_TRIES = 8  # of one request, at all servers together
CHECKS = 3  # looks at a server's health within the time that it may be silent

NEW = "it has not been given weights yet"

T = TypeVar("T")


class ReplicasLost(GagpoError, RuntimeError):
    """No server is left to ask; the message says what became of each."""


@dataclass
class ServerCounters:
    """What happened to requests and servers since the engine was made.

    lost: servers given up. silent: those of them that did not answer in time. revived: servers started again. asked:
    requests sent. again: requests sent once more because a server failed them. broken: answers that were none. stale:
    answers from other weights.
    """

    lost: int = 0
    silent: int = 0
    revived: int = 0
    asked: int = 0
    again: int = 0
    broken: int = 0
    stale: int = 0


@dataclass
class Replica:
    """One server as the router sees it.

    last_error: why it was given up; '' while it is in use. faults: those in a row, of which calls that were under way
    together count as one. events: all that were counted so.
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
    """Servers of a kind by number, and the requests under way at them.

    silence: seconds after which a server that does not even say that it is well is given up. deadline: seconds for one
    response. recover: called when no server is left, in the loop; it brings one back (see :meth:`admit`) or raises.
    """

    def __init__(
        self,
        urls: Sequence[str],
        kind: ServerKind,
        *,
        deadline: float,
        silence: float,
        recover: Callable[[], Awaitable[None]] | None = None,
    ):
        self.kind, self.deadline, self.silence = kind, deadline, silence
        self.counters = ServerCounters()
        self.terms: Terms | None = None  # set when weights have been sent
        self._recover = recover
        self._recovering: asyncio.Task[None] | None = None
        self._assigned: dict[int, Replica] = {}  # by session
        self._prefixes = PrefixTable()
        self._read_under: Terms | None = None  # what the table was filled under
        self._tasks: dict[asyncio.Task[Response], Request] = {}
        self._finished: queue.SimpleQueue[asyncio.Task[Response]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{kind.name} servers", daemon=True)
        self._thread.start()
        self.all = [Replica(number, Client(url, deadline, kind), last_error=NEW) for number, url in enumerate(urls)]
        self._closed = False
        self._looked_at: set[str] = set()  # urls

    # From the engine's thread -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Do ``work`` in the loop and wait for it; it has deadlines of its own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def under_way(self) -> int:
        """How many requests have been handed in and not been taken out or dropped."""
        return len(self._tasks)

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Begin on requests."""
        self.run(self._submit(requests, sampling))

    def collect(self, timeout: float | None) -> list[Finished]:
        """What is finished, as soon as something is; waits ``timeout`` seconds at most (None: as long as it takes).

        Raises what ended a request for good; all others are dropped then.
        """
        finished: list[Finished] = []
        try:
            while self._tasks:  # take whatever is there, waiting for the first of it at most
                task = self._finished.get(not finished, timeout)
                if (request := self._tasks.pop(task, None)) is not None:  # else it was released meanwhile
                    finished.append((request, task.result()))
        except queue.Empty:
            pass
        except BaseException:
            self.run(self._drop(list(self._tasks)))
            raise
        return finished

    def ask_all(
        self,
        replicas: Sequence[Replica],
        faults: Sequence[ReplicaError | None],
        questions: Sequence[Request],
        sampling: Sampling,
    ) -> list[list[Response] | Exception]:
        """The answers of the servers without a fault, in use or not, and what was wrong with the others."""

        async def one(replica: Replica, fault: ReplicaError | None) -> list[Response] | Exception:
            assert self.terms is not None
            if fault is not None:
                return fault
            try:
                calls = [replica.client.generate(question, sampling, self.terms) for question in questions]
                return await asyncio.gather(*calls)
            except (ReplicaError, RequestRefused) as error:
                return error

        async def all_of_them() -> list[list[Response] | Exception]:
            return await asyncio.gather(*map(one, replicas, faults))

        return self.run(all_of_them())

    def order(self, order: Order, deadline: float) -> None:
        """Have all servers in use do something; one that does not obey is given up."""
        for replica in [one for one in self.all if one.alive]:
            try:
                self.run(replica.client.order(*order, deadline))
            except (ReplicaError, RequestRefused) as error:
                self.take_out(replica, str(error))
                self.report_loss(replica, sum(one.alive for one in self.all))

    def advise(self, replica: Replica) -> None:
        """Say once of each server what the user should know of how it was started."""
        url = replica.client.url
        if url not in self._looked_at:
            self._looked_at.add(url)
            if words := self.run(self.kind.advice(replica.client, self.silence)):
                LOG.warning("the %s server %s: %s", self.kind.name, url, words)

    def take_out(self, replica: Replica, reason: str) -> None:
        """Take a server out of use, see :meth:`withdraw`."""
        self.run(self.withdraw(replica, reason))

    def release(self, session: int) -> None:
        """Forget the session and drop what it has under way."""
        if session in self._assigned or any(request.session == session for request in self._tasks.values()):
            self.run(self._release(session))

    def close(self) -> None:
        """Drop everything under way and end the thread; closing twice is once."""
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
        for request in requests:  # its task puts itself into the queue when it is done
            task = asyncio.create_task(self._respond(request, sampling))
            self._tasks[task] = request
            task.add_done_callback(self._finished.put)

    async def _respond(self, request: Request, sampling: Sampling) -> Response:
        """Ask until a server gives a response; ReplicasLost ends it, too many tries, and a refusal of all servers."""
        fault: ReplicaError | RequestRefused | None = None
        refused: dict[int, RequestRefused] = {}  # by the number of the server that said it
        for attempt in range(MOST_TRIES):  # at the session's server, then wherever the fault has left it
            replica = await self._assign(request, refused)
            self.counters.asked += 1
            self.counters.again += attempt > 0
            begun = replica.events
            try:
                response = await self._call(replica, request, sampling)
            except RequestRefused as error:  # one server's word is believed when no other takes the request either
                fault = refused[replica.number] = error
                self._unassign(request.session)
                if all(one.number in refused for one in self.all if one.alive):
                    raise
            except ReplicaError as error:
                fault = error
                await self._record_fault(replica, error, begun)
            else:
                for number, refusal in refused.items():
                    await self._record_fault(self.all[number], ReplicaError(str(refusal)))
                return response
        raise ReplicasLost(f"no server answered a request in {MOST_TRIES} tries; the last time: {fault}")

    async def _call(self, replica: Replica, request: Request, sampling: Sampling) -> Response:
        """Ask one server; its being given up meanwhile ends the wait."""
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

    async def _assign(self, request: Request, refused: Collection[int]) -> Replica:
        """The server of the session: the one that it was at, or of those that have not ``refused`` the one that
        :class:`PrefixTable` chooses."""
        replica = self._assigned.get(request.session)
        if replica is not None and replica.alive:
            return replica
        while not (alive := {replica.number: replica for replica in self.all if replica.alive}):
            await self._wait_for_recovery()
        if self.terms is not self._read_under:  # new weights: what was read before is of no use
            self._prefixes.clear()
            self._read_under = self.terms
        sessions = {number: len(one.sessions) for number, one in alive.items()}
        replica = alive[self._prefixes.choose(request.prompt_ids, sessions, refused)]
        replica.sessions.add(request.session)
        self._assigned[request.session] = replica
        return replica

    async def _wait_for_recovery(self) -> None:
        """Wait until a server is back; many requests wait for the same recovery."""
        if self._recover is None:
            raise ReplicasLost(f"no {self.kind.name} server is left: {self.last_errors()}")
        if self._recovering is None or self._recovering.done():
            self._recovering = asyncio.ensure_future(self._recover())
        await asyncio.shield(self._recovering)

    def last_errors(self) -> str:
        """What became of the servers that are not in use."""
        return "; ".join(f"{replica.client.url}: {replica.last_error}" for replica in self.all if not replica.alive)

    async def _drop(self, tasks: Sequence[asyncio.Task[Response]]) -> None:
        for task in tasks:  # forgotten first, so that nobody takes what a cancelled one leaves
            self._tasks.pop(task, None)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self, session: int) -> None:
        await self._drop([task for task, request in self._tasks.items() if request.session == session])
        self._unassign(session)

    def _unassign(self, session: int) -> None:
        replica = self._assigned.pop(session, None)
        if replica is not None:
            replica.sessions.discard(session)

    # In the loop: servers ---------------------------------------------------------------------------------------------

    async def _record_fault(self, replica: Replica, fault: ReplicaError, begun: int | None = None) -> None:
        """Decide what a fault says about a server: it is given up at once, after some more, or when it is not well.

        begun: the server's events when the call was made. A hundred connections that are cut at once are one event:
        what comes of the calls after it tells whether the server works.
        """
        if not replica.alive:
            return
        if begun is None or begun == replica.events:
            replica.faults += 1
            replica.events += 1
        self.counters.stale += isinstance(fault, StaleWeights)
        self.counters.broken += isinstance(fault, MalformedAnswer)
        if isinstance(fault, StaleWeights | ReplicaTimeout | UnsuitableServer) or replica.faults >= MOST_FAULTS:
            await self._give_up(replica, fault)
        elif isinstance(fault, ReplicaUnreachable):
            try:
                await replica.client.healthy(self.silence)
            except (ReplicaError, RequestRefused) as error:
                await self._give_up(replica, error)

    async def _give_up(self, replica: Replica, fault: Exception) -> None:
        """Give a server up; what is under way there goes to others."""
        if replica.alive:
            self.counters.lost += 1
            self.counters.silent += isinstance(fault, ReplicaTimeout)
            await self.withdraw(replica, str(fault))
            self.report_loss(replica, sum(one.alive for one in self.all))

    def report_loss(self, replica: Replica, left: int) -> None:
        """Say in the terminal that a server was given up, why, and how many are ``left``."""
        reason = ascii_only(replica.last_error)[:300]
        named = (self.kind.name, replica.client.url)
        LOG.warning("lost the %s server %s, %d of %d are left: %s", *named, left, len(self.all), reason)

    async def withdraw(self, replica: Replica, reason: str) -> None:
        """Take a server out of use, its sessions and requests with it."""
        replica.last_error = reason
        self._prefixes.forget(replica.number)
        for session in replica.sessions:
            self._assigned.pop(session, None)
        replica.sessions.clear()
        if replica.monitor is not None and replica.monitor is not asyncio.current_task():
            replica.monitor.cancel()
        for call in list(replica.calls):
            call.cancel()

    async def admit(self, replica: Replica) -> None:
        """Take a server into use that has the weights of :attr:`terms`, and watch over it."""
        replica.last_error, replica.faults = "", 0
        replica.monitor = asyncio.create_task(self._monitor(replica))

    async def move(self, replica: Replica, url: str) -> None:
        """The server has been started again, at ``url``; it is not in use yet."""
        self.counters.revived += 1
        await self.withdraw(replica, NEW)
        await replica.client.close()
        replica.client = Client(url, self.deadline, self.kind)

    async def _monitor(self, replica: Replica) -> None:
        """Notice a server that is silent, however long a response may rightly take."""
        heard = asyncio.get_running_loop().time()
        while replica.alive:  # one look may fail; silence for the whole time may not
            await asyncio.sleep(self.silence / CHECKS)
            try:
                await replica.client.healthy(self.silence / CHECKS)
                heard = asyncio.get_running_loop().time()
            except (ReplicaError, RequestRefused) as error:
                if asyncio.get_running_loop().time() - heard >= self.silence:
                    await self._give_up(
                        replica, ReplicaTimeout(f"nothing was heard of it for {self.silence:g} s: {error}")
                    )

    async def _close(self) -> None:
        await self._drop(list(self._tasks))
        monitors = [replica.monitor for replica in self.all if replica.monitor is not None]
        for monitor in monitors:
            monitor.cancel()
        await asyncio.gather(*monitors, return_exceptions=True)
        for replica in self.all:
            await replica.client.close()
