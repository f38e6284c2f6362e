"""A pool of environments on some node, asked in batches by a trainer elsewhere; it runs in an actor."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any

from gagpo.envs.errors import GagpoError
from gagpo.envs.pool import Pool

PATIENCE = 0.05  # seconds that an exchange waits for its slowest environment before it hands over what there is


class PoolHost:
    """Holds one :class:`gagpo.envs.pool.Pool`, made at the first exchange. Plain values in bytes go in and out: what an
    environment returns makes nobody import or run anything."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], options: Mapping[str, Any]):
        self._settings = (env_id, dict(env_kwargs), dict(options))
        self._pool: Pool | None = None

    def exchange(self, batch: bytes) -> bytes:
        """Carry out requests ``(operation, slot, ...)`` and answer with ``(events, counters)``, or with an error.

        Events come when all requests so far are answered, or after a moment those that are there.
        """
        try:
            if self._pool is None:
                env_id, kwargs, options = self._settings
                self._pool = Pool(env_id, kwargs, **options)
            requests = marshal.loads(batch)
            for operation, slot, *arguments in requests:
                getattr(self._pool, operation)(slot, *arguments)
            events = self._pool.wait(PATIENCE, at_least=2**31)
            return marshal.dumps(([tuple(event) for event in events], self._pool.counters.as_dict()))
        except GagpoError as error:
            return marshal.dumps(str(error))

    def close(self) -> None:
        """End the environments."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
