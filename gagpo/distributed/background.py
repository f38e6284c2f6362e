"""Background work, one piece at a time; its error is raised at the next check."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gagpo.base.errors import GagpoError


class Overdue(GagpoError, TimeoutError):
    """Background work that was not done by its deadline."""


class Background:
    """Runs work in a thread. what: its name in errors. deadline: seconds that a piece may take."""

    def __init__(self, what: str, deadline: float):
        self.what, self.deadline = what, deadline
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin ``work`` once the previous piece has ended; see :meth:`wait`."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(work,), name=self.what, daemon=True)
        thread.start()
        self._thread = thread  # not before: one whose start was interrupted cannot be joined

    def check(self) -> None:
        """Raise the error of the work, if it has ended with one; never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait for the work under way; raises its error, or :class:`Overdue`."""
        thread = self._thread
        if thread is None:
            return
        thread.join(self.deadline)
        if thread.is_alive():
            raise Overdue(f"{self.what} has not been done in {self.deadline:g} s: look at the disk it is written to")
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
