"""Environments on an OpenEnv server as a pool: one process waits for hundreds of sessions at once."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable
from typing import Any, Literal

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import is_address, maker
from gagpo.envs.pool import Event, Pool, WorkerPool
from gagpo.envs.pool.slots import BasePool, Holder
from gagpo.envs.remote.protocol import EpisodeFailed, Observed
from gagpo.envs.remote.server import Server, require_websockets, server_at
from gagpo.envs.remote.sessions import Outcome, SessionLost, Sessions


class RemotePool(BasePool):
    """Steps environments on a server, each in a session of its own. For one thread only.

    step_deadline, reset_deadline: seconds for one request.
    max_restarts: how often one episode may start over after a missed deadline, a lost session, an invalid answer or an
        error of its environment.

    Raises:
        ServerFailed: if the server cannot be reached; from ``wait`` if it cannot be reached for ``reset_deadline``.
    """

    def __init__(
        self, server: Server, *, step_deadline: float = 60, reset_deadline: float = 300, max_restarts: int = 3
    ):
        require_websockets()
        if not (0 < step_deadline < math.inf and 0 < reset_deadline < math.inf) or max_restarts < 0:
            raise InvalidArgument(
                f"deadlines must be positive seconds and max_restarts not negative, got {step_deadline}, "
                f"{reset_deadline} and {max_restarts}"
            )
        for split in server.splits:
            server.tasks(split)  # read now, so that the thread of the sessions never waits for HTTP
        self._place = Holder()
        super().__init__([self._place], max_restarts)
        self._answers: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        answered = self._answers.put
        self._sessions = Sessions(server, answered, step_deadline=step_deadline, reset_deadline=reset_deadline)

    def flush(self) -> None:
        self._sessions.ask(self._place.outbox)
        self._place.outbox.clear()

    def close(self) -> None:
        """End all sessions; idempotent."""
        super().close()
        self._sessions.close()

    def _collect(self, end: float, block: bool) -> None:
        try:
            # Waiting without a timeout is safe: sessions answer every request by its deadline.
            patience = None if end == math.inf else max(0.0, end - time.monotonic())
            self._take(*self._answers.get(block, patience))
            while True:
                self._take(*self._answers.get_nowait())
        except queue.Empty:
            return

    def _take(self, number: int, outcome: Outcome) -> None:
        if (assignment := self._place.held.get(number)) is None:
            return  # the slot has moved on
        if isinstance(outcome, Observed):
            self._deliver(assignment, Event(assignment.slot, assignment.pending, *outcome))
        elif isinstance(outcome, SessionLost | EpisodeFailed):
            if isinstance(outcome, SessionLost):
                self.counters.hangs += outcome.hung
                self.counters.crashes += not outcome.hung
            else:
                self.counters.errors += 1
            assignment.charges += 1
            self._start_over(assignment, str(outcome))
        else:
            self.close()
            raise outcome


def open_pool(
    env_id: str,
    env_kwargs: Kwargs | None = None,
    *,
    workers: int | Literal["auto"] = 2,
    memory_limit_mb: int | None = None,
    **options: Any,
) -> Pool:
    """A pool for ``env_id``: sessions of a server if it is an address, else processes on this machine.

    ``workers`` has no effect on a server, and on an environment that opens a pool of its own (``open_pool``);
    ``memory_limit_mb`` has none on a server.
    """
    if is_address(env_id):
        return RemotePool(server_at(env_id, dict(env_kwargs or {})), **options)
    own: Callable[..., Pool] | None = getattr(maker(env_id), "open_pool", None)
    if own is not None:
        return own(dict(env_kwargs or {}), memory_limit_mb, **options)
    return WorkerPool(env_id, env_kwargs, workers=workers, memory_limit_mb=memory_limit_mb, **options)
