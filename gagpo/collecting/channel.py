"""What the trainer's thread and the sampling thread hand each other, under one lock: weights, episodes, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.episodes import Episode
from gagpo.collecting.rollout_buffer import Group, RolloutBuffer, RolloutRequest

TICK = 0.1  # seconds after which a wait looks whether the run is being ended
STOP_SECONDS = 30.0  # the sampling thread is waited for at most so long


class SamplingStopped(Exception):
    """The trainer wants no more episodes; ends the sampling thread."""


class Channel:
    """The two threads meet here. Engine and pool belong to the sampling thread, except while it rests.

    version: iterations that the engine's weights have been trained for.
    """

    def __init__(self, buffer: RolloutBuffer):
        self.buffer = buffer
        self.version = buffer.iteration
        self.error: BaseException | None = None
        self.dropped: list[Episode] = []  # too old, while under way
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._weights: tuple[int, list[NamedTensor]] | None = None
        self._stopping = self._pausing = self._resting = False

    # The trainer's side -----------------------------------------------------------------------------------------------

    def start(self, work: Callable[[], None]) -> None:
        """Begin the sampling thread."""
        thread = threading.Thread(target=work, name="sampling", daemon=True)
        thread.start()
        self._thread = thread  # not before: one whose start was interrupted cannot be joined

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Lay out a copy of new weights; the held groups have been trained on. Weights not yet taken are replaced."""
        copied = [(name, tensor.detach().clone()) for name, tensor in tensors]
        with self._condition:
            self._weights = (iteration, copied)
            self.buffer.trained(iteration)
            self._condition.notify_all()

    def group(self) -> tuple[Group, list[Episode]]:
        """Wait for the next whole group; with it the episodes dropped since the last.

        What ended the sampling thread is raised here.
        """
        with self._condition:
            while True:
                # Finished episodes may have become too old while we trained: drop them before the next is handed over.
                self._require_alive()
                self.dropped += self.buffer.drop_stale()
                found = self.buffer.take()
                if found is not None:
                    dropped, self.dropped = self.dropped, []
                    return found, dropped
                self._condition.notify_all()  # what was dropped can be begun
                self._condition.wait(TICK)

    def discard(self, group: Group) -> None:
        with self._condition:
            self.buffer.discard(group)
            self._condition.notify_all()

    @contextmanager
    def rest(self, engine: Engine) -> Iterator[None]:
        """Let the sampling thread rest between turns; the engine then has the newest weights, and is the caller's."""
        with self._condition:
            self._pausing = True
            self._condition.notify_all()
            while not self._resting:  # unless there is nobody who could come to rest
                self._require_alive()
                self._condition.wait(TICK)
        try:
            self.renew(engine)
            yield
        finally:
            with self._condition:
                self._pausing = False
                self._condition.notify_all()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def state(self) -> tuple[int, list[int]]:
        """Position and due places."""
        with self._condition:
            return self.buffer.position, self.buffer.due

    def _require_alive(self) -> None:
        if self.error is not None:
            raise self.error
        if self._thread is None or not self._thread.is_alive():
            raise RuntimeError("the sampling thread ended without an error")

    # The sampling thread's side ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise :class:`SamplingStopped` when the trainer wants no more."""
        if self._stopping:
            raise SamplingStopped

    @property
    def wanted(self) -> bool:
        """Whether the trainer waits for the engine, or has weights for it: begin no more responses."""
        return self._pausing or self._weights is not None

    @property
    def pausing(self) -> bool:
        return self._pausing

    def renew(self, engine: Engine) -> None:
        """Load what the trainer has laid out, if anything. No response may be under way in the engine."""
        with self._condition:
            weights, self._weights = self._weights, None
        if weights is not None:
            engine.load_weights(weights[1])
            self.version = weights[0]

    def sleep(self) -> None:
        """Rest until the trainer has done what it wanted engine and pool for."""
        with self._condition:
            self._resting = True
            self._condition.notify_all()
            try:
                while self._pausing:  # or end, where the trainer ends meanwhile
                    self.check()
                    self._condition.wait(TICK)
            finally:
                self._resting = False

    def next(self) -> RolloutRequest | None:
        with self._condition:
            return self.buffer.next()

    def idle(self) -> None:
        """Wait a moment for something to do."""
        with self._condition:
            if not (self._stopping or self.wanted):
                self._condition.wait(TICK)

    def deliver(self, request: RolloutRequest, episode: Episode) -> None:
        with self._condition:
            self.buffer.deliver(request, episode)
            self._condition.notify_all()

    def too_old(self, episode: Episode) -> bool:
        with self._condition:
            return self.buffer.too_old(episode)

    def drop(self, request: RolloutRequest, episode: Episode) -> None:
        """An episode under way has become too old; it is played anew."""
        with self._condition:
            self.dropped.append(episode)
            self.buffer.again(request.place, request.sample)

    def fail(self, error: BaseException) -> None:
        with self._condition:
            self.error = error
            self._condition.notify_all()
