"""How often something may be started again: so many times in any hour, so that a long run outlives rare losses."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

HOUR = 3600.0


class RestartBudget:
    """``most`` restarts in any hour; what comes more often than that is broken, and starting it again mends nothing.

    >>> budget = RestartBudget(1, clock=iter([0.0, 1.0, 3601.0]).__next__)
    >>> budget.take(), budget.take(), budget.take()
    (True, False, True)
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self.most = most
        self._clock = clock
        self._taken: deque[float] = deque()

    def take(self) -> bool:
        """Whether one more is allowed now; it is counted then."""
        now = self._clock()
        while self._taken and now - self._taken[0] >= HOUR:
            self._taken.popleft()
        if len(self._taken) >= self.most:
            return False
        self._taken.append(now)
        return True

    @property
    def taken(self) -> int:
        """Restarts within the hour before the last one that was asked for."""
        return len(self._taken)
