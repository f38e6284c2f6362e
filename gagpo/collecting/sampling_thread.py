"""A thread that samples beside the trainer's: how it begins, is paused, tells what went wrong, and is ended."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from gagpo.agents.engines.base import Engine, claim_device

TICK = 0.1  # seconds after which a wait looks whether the run is being ended
STOP_SECONDS = 30.0  # the thread is waited for at most so long


class SamplingStopped(Exception):
    """The trainer wants no more episodes; ends the sampling thread."""


class SamplingThread(ABC):
    """What the two threads agree on, under one lock. Engine and pool are the sampling thread's, except while it rests.

    version: iterations that the engine's weights have been trained for. resting: whether the thread rests before it has
    begun. What it does sets ``_resting`` under the lock, and calls :meth:`check` wherever it waits.
    """

    def __init__(self, version: int, resting: bool):
        self.version = version
        self.error: BaseException | None = None
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._resting = resting
        self._stopping = self._pausing = False

    # The trainer's side -----------------------------------------------------------------------------------------------

    def start(self, engine: Engine, work: Callable[[], None]) -> None:
        """Begin the thread, which does ``work`` on the engine's device."""
        thread = threading.Thread(target=self._run, args=(engine, work), name="sampling", daemon=True)
        thread.start()
        self._thread = thread  # not before: one whose start was interrupted cannot be joined

    def stop(self) -> None:
        """End the thread, within seconds; what was under way is given up."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The thread rests meanwhile: engine and pool are the caller's. What ended the thread is raised here."""
        try:
            with self._condition:
                self._pausing = True
                self._condition.notify_all()
                while not self._resting:  # unless there is nobody who could come to rest
                    self.require_alive()
                    self._condition.wait(TICK)
            yield
        finally:
            with self._condition:
                self._pausing = False
                self._condition.notify_all()

    @abstractmethod
    def rest(self, engine: Engine) -> AbstractContextManager[None]:
        """A context in which the thread is paused, and the engine has the newest weights."""

    def require_alive(self) -> None:
        """Raise what ended the thread, if it has ended."""
        if self.error is not None:
            raise self.error
        if self._thread is None or not self._thread.is_alive():
            raise RuntimeError("the sampling thread ended without an error")

    # The sampling thread's side ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise :class:`SamplingStopped` when the trainer wants no more."""
        if self._stopping:
            raise SamplingStopped

    def _run(self, engine: Engine, work: Callable[[], None]) -> None:
        try:
            device = getattr(engine, "device", None)
            if device is not None:
                claim_device(device)
            work()
        except SamplingStopped:
            pass
        except BaseException as error:
            with self._condition:
                self.error = error
                self._condition.notify_all()
