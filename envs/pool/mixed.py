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

SLICE_SECONDS = 0.005  # to wait for one environment before checking the others


class MixedPool(Pool):
    """A pool for each environment; task names begin with the environment's. For one thread only.

    The pools may be used directly while no request is outstanding here. They are closed with this one.

    pools: by the name of their environment.
    """

    def __init__(self, pools: Mapping[str, Pool]):
        if not pools:
            raise InvalidArgument("a pool of several environments needs at least one")
        self.pools = dict(pools)
        self._at: dict[int, Pool] = {}  # by slot

    def reset(self, slot: int, task: str, seed: int | None = None) -> None:
        env, name = split_task(task)
        if env not in self.pools:
            choice = f"is of environment {env!r:.40}; choose from {', '.join(self.pools)}"
            raise InvalidArgument(f"task {task!r:.80} {choice}")
        pool = self.pools[env]
        if self._at.get(slot) is not pool:
            self.release(slot)
        self._at[slot] = pool
        pool.reset(slot, name, seed)

    def step(self, slot: int, action: str) -> None:
        self._pool(slot).step(slot, action)

    def release(self, slot: int) -> None:
        if (pool := self._at.pop(slot, None)) is not None:
            pool.release(slot)

    def wait(self, timeout: float | None = None, at_least: int = 1) -> list[Event]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        events: list[Event] = []
        while True:
            self.flush()
            for pool in self.pools.values():
                left = 0.0 if len(events) >= at_least else max(0.0, min(SLICE_SECONDS, end - time.monotonic()))
                events += pool.wait(left)
            if len(events) >= at_least or time.monotonic() >= end or not self.outstanding:
                return events

    @property
    def outstanding(self) -> int:
        return sum(pool.outstanding for pool in self.pools.values())

    def flush(self) -> None:
        for pool in self.pools.values():
            pool.flush()

    @property
    def counters(self) -> Counters:
        each = [asdict(pool.counters) for pool in self.pools.values()]
        return Counters(**{name: sum(one[name] for one in each) for name in each[0]})

    def close(self) -> None:
        """Close the pools of all environments, even if closing one fails; idempotent."""
        with ExitStack() as stack:
            for pool in self.pools.values():
                stack.callback(pool.close)

    def _pool(self, slot: int) -> Pool:
        if slot not in self._at:
            raise InvalidArgument(f"slot {slot} holds no episode that waits for an action: reset it before stepping")
        return self._at[slot]
