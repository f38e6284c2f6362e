"""What the trainer's thread and the sampling thread hand each other, under one lock: weights, episodes, errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gagpo.agents.engines.base import Engine, NamedTensor
from gagpo.agents.episodes import Episode
from gagpo.collecting.rollout_buffer import Group, RolloutBuffer, RolloutRequest
from gagpo.collecting.sampling_thread import TICK, SamplingThread


class Channel(SamplingThread):
    """The two threads meet here."""

    def __init__(self, buffer: RolloutBuffer):
        super().__init__(buffer.iteration, resting=False)
        self.buffer = buffer
        self.dropped: list[Episode] = []  # too old, while under way
        self._weights: tuple[int, list[NamedTensor]] | None = None

    # The trainer's side -----------------------------------------------------------------------------------------------

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
                self.require_alive()
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
        with self.paused():
            self.renew(engine)
            yield

    def state(self) -> tuple[int, list[int]]:
        """Position and due places."""
        with self._condition:
            return self.buffer.position, self.buffer.due

    # The sampling thread's side ---------------------------------------------------------------------------------------

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
