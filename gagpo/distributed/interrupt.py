"""Handle Ctrl-C and SIGTERM, defer them while the weights are being changed, and say at once what will happen.

An update that is cut in the middle leaves weights and optimiser of different steps, and ranks at different calls. So a
signal is noted and raised where everything is whole. A second one is raised at once, for a person who does not want to
wait.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from gagpo.base.signals import NUMBERS, Signals, error_of
from gagpo.distributed.ranks import Ranks

RESUMES = "the run resumes from its last checkpoint"


class Interruptions(Signals):
    """While :meth:`watching`, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated(143).

    In :meth:`deferred` a signal is raised at the end of the context; a second SIGINT is raised at once. Python delivers
    signals to the main thread only: in other threads the contexts do nothing.

    With several ranks a signal is deferred everywhere except in :meth:`immediate`, and raised on all ranks where they
    meet, so that no rank waits for one that has stopped.

    Each signal prints a line when it arrives, because an update can take minutes.

    promise: for that line, what a signal that is raised at once does not lose.
    """

    def __init__(self, ranks: Ranks | None = None, promise: str = "finished iterations are saved") -> None:
        super().__init__()
        self.ranks = ranks or Ranks()
        self._promise = promise
        self._deferring = not self.ranks.alone
        self._pending: BaseException | None = None
        self._work = ""  # what is done before a deferred signal is raised

    @contextmanager
    def watching(self, numbers: Sequence[int] = NUMBERS) -> Iterator[None]:
        if self.ranks.watch is not None:
            self.ranks.watch.stop_when(lambda: self._pending is not None)
        with super().watching(numbers):
            yield
            if not self.ranks.alone:  # the block is done, and the other ranks wait for this one
                self._raised = None

    @contextmanager
    def deferred(self, work: str = "this step") -> Iterator[None]:
        """Raise a signal at the end of the block. work: what the block does, for the line that the signal prints."""
        self._deferring = True
        self._work = work
        try:
            yield
        finally:
            self._deferring = not self.ranks.alone
            self._work = ""
        pending, self._pending = self._pending, None
        # All ranks meet even without a signal of their own: another rank may have got one.
        if not self.ranks.alone:
            names = self.ranks.gathered(pending and type(pending).__name__)
            self.ranks.raise_together(pending, names)
        elif pending is not None:
            raise pending

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise signals at once, and a deferred one on entry. The caller synchronises the ranks afterwards."""
        self._deferring, before = False, self._deferring
        try:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                raise pending
            yield
        finally:
            self._deferring = before

    def _take(self, number: int, frame: FrameType | None) -> None:
        deferred = self._deferring and self._pending is None
        if self.ranks.first:
            _print_now(self._announcement(deferred))
        if deferred:
            self._pending = error_of(number)
            return
        self._raise(error_of(number), frame)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        # What is deferred must be whole. A second signal has been raised there, and is raised again.
        if not self._deferring or self._pending is not None:
            super()._raise_again(number, frame)

    def _announcement(self, deferred: bool) -> str:
        """What a signal does."""
        if self._pending is not None:
            return f"stopping at once: {RESUMES}"
        if not deferred:
            return f"stopping: {self._promise}"
        # Without a name, ranks are between two points where they meet.
        work = f"after {self._work}" if self._work else "as soon as all ranks have heard of it"
        return f"stopping {work}; press Ctrl-C again to stop at once ({RESUMES})"


def _print_now(line: str) -> None:
    """Print a line from a signal handler, which may have interrupted another print to the same stream."""
    with suppress(OSError, RuntimeError, ValueError):  # a closed stream, or one that cannot be entered again
        print(line, file=sys.stderr, flush=True)
