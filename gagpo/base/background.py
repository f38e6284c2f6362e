"""One background job at a time; its error is raised at the next check."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gagpo.base.errors import GagpoError


class JobTimeout(GagpoError, TimeoutError):
    """A background job missed its deadline."""


class Background:
    """Runs jobs in a thread.

    name: of the job, in errors.
    deadline: seconds that a job may take.
    """

    def __init__(self, name: str, deadline: float):
        self.name = name
        self.deadline = deadline
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Wait for the previous job, then start ``work``."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True)
        thread.start()
        self._thread = thread  # only now: a thread whose start was interrupted cannot be joined

    def check(self) -> None:
        """Raise the error of a job that has failed; never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait for the running job; raises its error, or :class:`JobTimeout`."""
        thread = self._thread
        if thread is None:
            return
        thread.join(self.deadline)
        if thread.is_alive():
            raise JobTimeout(
                f"took more than {self.deadline:g} s", where=self.name, advice="check the disk it is written to"
            )
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
