"""Named spans of code, which cost almost nothing unless a profile is running.

Spans stay in the code, so a profile measures the product itself and not a changed copy of it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Profile:
    """Wall-clock and CPU seconds per span, without those of inner spans.

    finish: called at both ends of a span; on a GPU it waits for launched kernels.
    """

    def __init__(self, finish: Callable[[], None] | None = None):
        self.wall: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)
        self._finish = finish or (lambda: None)
        self._open = threading.local()

    def clear(self) -> None:
        """Reset to zero; open spans are still measured from their start."""
        self.wall.clear()
        self.processor.clear()

    @contextmanager
    def running(self) -> Iterator[Profile]:
        """A context in which the spans of all threads are measured."""
        global _active
        _active = self
        try:
            yield self
        finally:
            _active = None

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        inner = self._open.__dict__.setdefault("inner", [])  # time of the inner spans of each open one
        self._finish()
        wall, processor = time.perf_counter(), time.process_time()
        inner.append([0.0, 0.0])
        try:
            yield
        finally:
            self._finish()
            spent = time.perf_counter() - wall, time.process_time() - processor
            within = inner.pop()
            self.wall[name] += spent[0] - within[0]
            self.processor[name] += spent[1] - within[1]
            if inner:
                inner[-1] = [inner[-1][0] + spent[0], inner[-1][1] + spent[1]]


_active: Profile | None = None


@contextmanager
def span(name: str) -> Iterator[None]:
    """Measure the block under ``name`` if a :class:`Profile` is running."""
    if _active is None:
        yield
        return
    with _active.span(name):
        yield
