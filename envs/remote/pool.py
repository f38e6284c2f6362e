"""Worlds on a server as a pool, with the contract of :mod:`gagpo.envs.pool.slots`: one process drives hundreds of them.

A step of such a world costs this machine nothing but a wait, so all of them are waited for at once.
"""

from __future__ import annotations

import math
import queue
import time
from typing import Any, Literal, cast

from gagpo.envs.base import Kwargs
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.lookup import is_address
from gagpo.envs.pool import Event, Pool
from gagpo.envs.pool.slots import BasePool, Holder
from gagpo.envs.remote.protocol import Observed, ServerFailed, WorldFailed
from gagpo.envs.remote.server import Server, require_websockets
from gagpo.envs.remote.sessions import Outcome, SessionLost, Sessions


class RemotePool(BasePool):
    """Steps environments on a server, each in a session of its own.

    step_deadline, reset_deadline: seconds that one request may take there. max_restarts: how often one episode may
    break before it is given up: by a deadline, a session that ends, an answer that is none, an error of its world.

    Raises :class:`ServerFailed`, in one line: at once when the server cannot be reached, and from ``wait`` when it was
    not reached again within ``reset_deadline``. For one thread only.
    """

    def __init__(
        self,
        url: str,
        *,
        train: int = 1000,
        test: int = 100,
        step_deadline: float = 60,
        reset_deadline: float = 300,
        max_restarts: int = 3,
    ):
        require_websockets()
        if not (0 < step_deadline < math.inf and 0 < reset_deadline < math.inf) or max_restarts < 0:
            raise InvalidArgument(
                f"deadlines must be positive seconds and max_restarts not negative, got {step_deadline}, "
                f"{reset_deadline} and {max_restarts}"
            )
        self.env_id = url
        server = Server(url, train, test)
        for split in server.splits:
            server.tasks(split)  # asked for now: the sessions' thread never waits for HTTP
        self._here = Holder()
        super().__init__([self._here], max_restarts)
        self._answers: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
        self._sessions = Sessions(
            server,
            lambda number, outcome: self._answers.put((number, outcome)),
            step_deadline=step_deadline,
            reset_deadline=reset_deadline,
            patience=reset_deadline,
        )

    @property
    def processes(self) -> list[int]:
        return []

    def flush(self) -> None:
        self._sessions.ask(self._here.outbox)
        self._here.outbox.clear()

    def wake(self) -> None:
        """End a ``wait`` early, now or when it begins; the one thing that any thread may do."""
        self._answers.put(None)

    def close(self) -> None:
        """End all sessions; idempotent."""
        super().close()
        self._sessions.close()

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

    def _take(self, found: tuple[int, Outcome] | None) -> None:
        if found is None:
            self._woken = True
            return
        number, outcome = found
        assignment = self._here.held.get(number)
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
    """The pool that steps ``env_id``: sessions of a server where it is a server's address, else processes here.

    What only processes have (``workers``, ``memory_limit_mb``) has no meaning for a server.
    """
    if is_address(env_id):
        try:
            remote = RemotePool(env_id, **dict(env_kwargs or {}), **options)
        except TypeError as error:
            raise InvalidArgument(f"environment {env_id}: {error}") from None
        return cast(Pool, remote)  # the same contract
    return Pool(env_id, env_kwargs, workers=workers, memory_limit_mb=memory_limit_mb, **options)
