"""Worlds on servers as a pool, with the contract of :mod:`gagpo.envs.pool.slots`: one process drives hundreds of them.

A step of such a world costs this machine nothing but a wait, so all of them are waited for at once.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Sequence
from typing import Any, Literal, cast

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import is_address, is_image
from gagpo.envs.pool import Event, Pool
from gagpo.envs.pool.slots import Assignment, BasePool, Holder
from gagpo.envs.remote.containers import ContainerLease
from gagpo.envs.remote.protocol import Observed, ServerFailed, WorldFailed
from gagpo.envs.remote.server import Server, require_websockets
from gagpo.envs.remote.sessions import Outcome, SessionLost, Sessions


class _Place(Holder):
    """A server, and the sessions there."""

    sessions: Sessions


class RemotePool(BasePool):
    """Steps environments on servers of the same tasks, each in a session of its own.

    step_deadline, reset_deadline: seconds that one request may take there. max_restarts: how often one episode may
    break before it is given up: by a deadline, a session that ends, an answer that is none, an error of its world.
    lease: of the containers that the servers are in; the pool lets go of them when it is closed.

    Raises :class:`ServerFailed`, in one line: at once when a server cannot be reached, and from ``wait`` when it was
    not reached again within ``reset_deadline`` (in a container, when no other takes its place). For one thread only.
    """

    def __init__(
        self,
        env_id: str,
        servers: Sequence[Server],
        *,
        step_deadline: float = 60,
        reset_deadline: float = 300,
        max_restarts: int = 3,
        lease: ContainerLease | None = None,
    ):
        require_websockets()
        if not (0 < step_deadline < math.inf and 0 < reset_deadline < math.inf) or max_restarts < 0:
            raise InvalidArgument(
                f"deadlines must be positive seconds and max_restarts not negative, got {step_deadline}, "
                f"{reset_deadline} and {max_restarts}"
            )
        self.env_id = env_id
        for server in servers:
            for split in server.splits:
                server.tasks(split)  # asked for now: the sessions' threads never wait for HTTP
        self._places = [_Place() for _ in servers]
        super().__init__(self._places, max_restarts)
        self._lease = lease
        self._answers: queue.SimpleQueue[tuple[int, Outcome] | ServerFailed | None] = queue.SimpleQueue()
        patience = reset_deadline
        if lease is not None:
            patience += lease.containers.start_deadline  # of its successor
            lease.containers.tell(self._answers.put)
        for place, server in zip(self._places, servers, strict=True):
            place.sessions = Sessions(
                server,
                lambda number, outcome: self._answers.put((number, outcome)),
                step_deadline=step_deadline,
                reset_deadline=reset_deadline,
                patience=patience,
            )

    @property
    def processes(self) -> list[int]:
        return []

    def flush(self) -> None:
        for place in self._places:
            place.sessions.ask(place.outbox)
            place.outbox.clear()

    def wake(self) -> None:
        """End a ``wait`` early, now or when it begins; the one thing that any thread may do."""
        self._answers.put(None)

    def close(self) -> None:
        """End all sessions; idempotent."""
        super().close()
        for place in self._places:
            place.sessions.close()
        if self._lease is not None:
            self._lease.close()

    def _collect(self, end: float, block: bool) -> None:
        try:
            # Without a limit all the same: every request has its deadline over there, and is answered.
            patience = None if end == math.inf else max(0.0, end - time.monotonic())
            found = self._answers.get(block, patience)
            while True:
                self._take(found)
                found = self._answers.get_nowait()
        except queue.Empty:
            return

    def _take(self, found: tuple[int, Outcome] | ServerFailed | None) -> None:
        if found is None:
            self._woken = True
            return
        if isinstance(found, ServerFailed):
            self.close()
            raise found
        number, outcome = found
        assignment = self._held(number)
        if assignment is None:
            return  # the slot has moved on
        if isinstance(outcome, Observed):
            kind = "step" if assignment.pending == "step" else "reset"
            self._deliver(assignment, Event(assignment.slot, kind, *outcome))
        elif assignment.pending == "save":
            self._keep(assignment, str(outcome))
        elif isinstance(outcome, SessionLost | WorldFailed):
            self._count(outcome)
            assignment.charges += 1 if assignment.pending != "restore" else self._max_restarts + 1
            self._start_over(assignment, str(outcome))
        else:
            self.close()
            raise outcome

    def _held(self, number: int) -> Assignment | None:
        return next((place.held[number] for place in self._places if number in place.held), None)

    def _count(self, outcome: ServerFailed) -> None:
        if isinstance(outcome, SessionLost):
            self.counters.hangs += outcome.hung
            self.counters.crashes += not outcome.hung
        else:
            self.counters.errors += 1


def open_pool(
    env_id: str,
    env_kwargs: Kwargs | None = None,
    *,
    workers: int | Literal["auto"] = 2,
    memory_limit_mb: int | None = None,
    **options: Any,
) -> Pool:
    """The pool that steps ``env_id``: sessions of a server where it is an address or an image, else processes here.

    What only processes have (``workers``, ``memory_limit_mb``) has no meaning for a server.
    """
    if is_address(env_id):
        try:
            server = Server(env_id, **dict(env_kwargs or {}))
        except TypeError as error:
            raise InvalidArgument(f"environment {env_id}: {error}") from None
        return cast(Pool, RemotePool(env_id, [server], **options))  # the same contract
    if is_image(env_id):
        return cast(Pool, _open_containers(env_id, dict(env_kwargs or {}), options))
    return Pool(env_id, env_kwargs, workers=workers, memory_limit_mb=memory_limit_mb, **options)


def _open_containers(env_id: str, kwargs: dict[str, Any], options: dict[str, Any]) -> RemotePool:
    train, test = kwargs.pop("train", 1000), kwargs.pop("test", 100)
    lease = ContainerLease(env_id, kwargs)
    try:
        return RemotePool(env_id, lease.servers(train, test), lease=lease, **options)
    except BaseException:
        lease.close()
        raise
