"""The thread of ``rollout.ahead``: it samples the groups of the buffer while the trainer updates the weights."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.engines.base import Request, Response, claim_device
from gagpo.agents.rollout import Clock, RolloutLoop
from gagpo.collecting.buffer import Group, GroupBuffer
from gagpo.data.episodes import Episode, Turn
from gagpo.envs.pool import Pool
from gagpo.model.weights import NamedTensor

T = TypeVar("T")

TICK = 0.1  # seconds between checks whether the run is being ended
STOP_SECONDS = 30.0  # longest wait for the thread to end
FIRST_SLOT = 2**20  # slots below it are for evaluations, which use the pool while the thread rests


class SamplingStopped(Exception):
    """Ends the thread."""


class SamplingThread:
    """Plays the groups of ``buffer``. Only this thread uses engine and pool, except while it rests.

    version: number of updates of the engine's weights.
    clock: time spent on episodes so far.
    """

    def __init__(self, agent: LanguageAgent, pool: Pool, buffer: GroupBuffer):
        self.agent, self.pool, self.buffer = VersionedAgent(agent, self), pool, buffer
        self.version = buffer.iteration
        self.clock = Clock()
        self._changed = buffer.changed
        self._error: BaseException | None = None
        self._weights: deque[tuple[int, list[NamedTensor]]] = deque()  # published, not loaded yet
        self._resting = self.pausing = self._stopping = False
        self._thread: threading.Thread | None = None

    # The trainer's side -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        thread.start()
        self._thread = thread  # last, because a thread whose start was interrupted cannot be joined

    def stop(self) -> None:
        """End the thread within seconds; unfinished episodes are lost."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def publish(self, tensors: Iterable[NamedTensor], iteration: int) -> None:
        """Copy new weights for the engine, and open the groups that the buffer has room for.

        With ``rollout.deterministic`` earlier copies are kept until the groups of their version have been sampled.
        """
        copied = [(name, tensor.detach().clone()) for name, tensor in tensors]
        with self._changed:
            if not self.buffer.settings.rollout.deterministic:
                self._weights.clear()
            self._weights.append((iteration, copied))
            self.buffer.iteration = iteration
            self.buffer.open(self.buffer.room)
            self._changed.notify_all()

    def wait_for(self, find: Callable[[], T], seconds: float | None = None) -> T:
        """The result of ``find`` once it is true, or after ``seconds``. Raises the error that ended the thread."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not (found := find()) and (end is None or time.monotonic() < end):
                if self._error is not None:
                    raise self._error
                if self._thread is None or not self._thread.is_alive():
                    raise RuntimeError("the sampling thread ended without an error")
                self._changed.notify_all()
                self._changed.wait(TICK)
            return found

    @contextmanager
    def rest(self) -> Iterator[None]:
        """A context in which the caller can use engine and pool; the engine has the newest weights."""
        with self._changed:
            newest = self._weights[-1][0] if self._weights else self.version
        self.wait_for(lambda: not any(_needs_older(group, newest) for group in self.buffer.groups))
        try:
            with self._changed:
                self.pausing = True
                self.wait_for(lambda: self._resting)
            self.load_weights()
            yield
        finally:
            with self._changed:
                self.pausing = False
                self._changed.notify_all()

    # The sampling thread's side ---------------------------------------------------------------------------------------

    @property
    def interrupting(self) -> bool:
        """Whether no more responses may begin, because the trainer waits for the engine or has weights for it."""
        return self.pausing or bool(self._weights)

    def check(self) -> None:
        """Raise :class:`SamplingStopped` after :meth:`stop`."""
        if self._stopping:
            raise SamplingStopped

    def rest_until(self, find: Callable[[], T]) -> T:
        """Rest until the trainer has released engine and pool, and ``find`` returns something true."""
        with self._changed:
            self._resting = True
            self._changed.notify_all()
            while self.pausing or not (found := find()):
                self.check()
                self._changed.wait(TICK)
            self.check()
            self._resting = False
            return found

    def load_weights(self, version: int | None = None) -> None:
        """Load the newest published weights up to ``version``. No response may be under way."""
        tensors: list[NamedTensor] | None = None
        with self._changed:
            while self._weights and (version is None or self._weights[0][0] <= version):
                self.version, tensors = self._weights.popleft()
        if tensors is not None:
            self.agent.engine.load_weights(tensors)

    def _run(self) -> None:
        try:
            device = getattr(self.agent.engine, "device", None)
            if device is not None:
                claim_device(device)
            RolloutStream(self).run()
        except SamplingStopped:
            pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _needs_older(group: Group, newest: int) -> bool:
    """Whether a group has yet to be sampled with weights before ``newest``."""
    return group.version is not None and group.version < newest and not group.complete


class VersionedAgent(LanguageAgent):
    """A language agent that records the weight version of its turns, and that can be stopped while it waits.

    thinking: number of responses under way.
    """

    def __init__(self, agent: LanguageAgent, thread: SamplingThread):
        super().__init__(agent.engine, agent.context, agent.sampling, agent.formats)
        self.thread = thread
        self.thinking = 0

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        self.submit(states)
        found: dict[int, Turn] = {}
        while self.thinking:
            self.thread.check()
            found.update(self.collect(TICK))
        return [found.get(state.slot) for state in states]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        if not states:
            return []
        full = super().submit(states)
        self.thinking += len(states) - len(full)
        return full

    def collect(self, timeout: float | None) -> list[tuple[int, Turn]]:
        found = super().collect(TICK if timeout is None else timeout)
        self.thinking -= len(found)
        return found

    def _turn(self, request: Request, response: Response) -> Turn:
        turn = super()._turn(request, response)
        turn.version = self.thread.version  # weights change only when no response is under way
        return turn


class RolloutStream(RolloutLoop):
    """Plays the groups of the buffer until the thread is stopped.

    With ``rollout.deterministic`` it plays one batch after another, each with the weights of its version. Without it a
    finished episode makes room for the next one, and new weights are loaded as soon as the responses under way are
    finished: a turn comes from one policy, an episode may come from several.
    """

    def __init__(self, thread: SamplingThread):
        self.thread, self.buffer = thread, thread.buffer
        rolling = self.buffer.settings.rollout
        super().__init__(thread.agent, thread.pool, [], rolling.concurrency, None, thread.clock)
        self.deterministic = rolling.deterministic
        self.playing: dict[int, tuple[Group, int]] = {}  # group and sample, by slot
        self.batch: deque[tuple[Group, int]] = deque()  # with deterministic: the rest of the batch under way
        self.upcoming = FIRST_SLOT

    def run(self) -> None:
        try:
            if self.deterministic:
                self.play_in_batches(deterministic=True)
            else:
                self.play_async(self.thread.agent)
        finally:
            for slot in list(self.states):
                self.agent.forget(slot)
                self.pool.release(slot)

    def _begin(self) -> bool:
        self.thread.check()
        if self.deterministic and not self.states:
            self.batch.extend(self.thread.rest_until(self.buffer.next_batch))
            self.thread.load_weights(self.batch[0][0].version)
        elif not self.deterministic and not self.thread.agent.thinking:
            if self.thread.pausing:
                self._rest()
            self.thread.load_weights()
        while len(self.states) < self.concurrency and (found := self._next()):
            group, sample = self.playing[self.upcoming] = found
            self._start(self.upcoming, group.jobs[sample])
            self.upcoming += 1
        if not self.states:
            self.thread.rest_until(lambda: self.thread.interrupting or self.buffer.waiting)
        return True

    def _next(self) -> tuple[Group, int] | None:
        if self.deterministic:
            return self.batch.popleft() if self.batch else None
        with self.buffer.changed:
            return self.buffer.next_episode()

    def _rest(self) -> None:
        """Hand over engine and pool once the environments have answered, because their deadlines continue."""
        while self.waiting:
            self._take_events(None)
        self._leave_over()
        self.thread.rest_until(lambda: True)

    def _take_events(self, timeout: float | None) -> None:
        self.thread.check()
        super()._take_events(TICK if timeout is None else timeout)

    def _take_ready(self) -> list[int]:
        return [] if not self.deterministic and self.thread.interrupting else super()._take_ready()

    def _deliver(self, slot: int, episode: Episode) -> None:
        with self.buffer.changed:
            self.buffer.deliver(*self.playing.pop(slot), episode)
            self.buffer.changed.notify_all()
