"""The pools of several environments as one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict

from gagpo.base.errors import InvalidArgument
from gagpo.envs.pool.slots import Counters, Event, Pool
from gagpo.envs.tasks import split_task

# To wait for one environment before checking the others: each pool has a selector of its own, so they cannot be waited
# for together. The longest delay of an answer is this times the number of environments.
SLICE_SECONDS = 0.005


class MixedPool(Pool):
    """A pool for each environment; task names begin with the environment's. For one thread only.

    The pools may be used directly while no request is outstanding here. They are closed with this one.

    pools: by the name of their environment.
    """

    def __init__(self, pools: Mapping[str, Pool]):
        if not pools:
            raise InvalidArgument("a pool of several environments needs at least one")
        self.pools = dict(pools)
        self._pool_of_slot: dict[int, Pool] = {}  # by slot

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        env, name = split_task(task)
        if env not in self.pools:
            advice = f"choose from {', '.join(self.pools)}"
            raise InvalidArgument(f"is of environment {env!r:.40}", where=f"task {task!r:.80}", advice=advice)
        pool = self.pools[env]
        if self._pool_of_slot.get(slot) is not pool:
            self.release(slot)
        self._pool_of_slot[slot] = pool
        pool.reset(slot, name, seed)

    def step(self, slot: int, action: str) -> None:
        self._pool(slot).step(slot, action)

    def release(self, slot: int) -> None:
        pool = self._pool_of_slot.pop(slot, None)
        if pool is not None:
            pool.release(slot)

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        events: list[Event] = []
        while True:
            self.flush()
            for pool in self.pools.values():
                patience = 0.0
                if len(events) < at_least:
                    patience = max(0.0, min(SLICE_SECONDS, deadline - time.monotonic()))
                events += pool.wait(patience)
            if len(events) >= at_least or time.monotonic() >= deadline or not self.outstanding:
                return events

    @property
    def outstanding(self) -> int:
        return sum(pool.outstanding for pool in self.pools.values())

    def flush(self) -> None:
        for pool in self.pools.values():
            pool.flush()

    @property
    def counters(self) -> Counters:
        counts_per_pool = [asdict(pool.counters) for pool in self.pools.values()]
        return Counters(**{name: sum(counts[name] for counts in counts_per_pool) for name in counts_per_pool[0]})

    def close(self) -> None:
        """Close the pools of all environments, even if closing one fails; idempotent."""
        with ExitStack() as stack:
            for pool in self.pools.values():
                stack.callback(pool.close)

    def _pool(self, slot: int) -> Pool:
        if slot not in self._pool_of_slot:
            raise InvalidArgument(
                f"slot {slot} holds no episode that waits for an action", advice="reset it before stepping"
            )
        return self._pool_of_slot[slot]
