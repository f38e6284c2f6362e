"""The thread of ``rollout.ahead``: it samples the groups of the buffer while the trainer updates the weights.

A thread and not a process, because engine and pool stay where they are: the GPU and the workers do the work, and the
trainer's own work is mostly in torch, which lets other threads run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from gagpo.agents.agent import EpisodeState, LanguageAgent
from gagpo.agents.engines.base import claim_device
from gagpo.agents.rollout import Clock, Job, RolloutLoop
from gagpo.collecting.buffer import Group, GroupBuffer
from gagpo.data import Episode, Turn
from gagpo.envs.pool import Pool
from gagpo.model.weights import NamedTensor

T = TypeVar("T")

TICK = 0.1  # longest wait, in seconds, before each thread checks whether the run is being ended or the other has failed
STOP_SECONDS = 30.0  # longest wait for the thread to end: a response under way cannot be interrupted
FIRST_SLOT = 2**20  # slots below it are for evaluations, which use the pool while the thread rests


class SamplingStopped(Exception):
    """Ends the thread."""


class SamplingThread:
    """Samples the groups of ``buffer``. Only this thread uses engine and pool, except while it rests.

    Trainer and thread share the condition ``buffer.changed``. It protects the buffer and all fields below except
    ``clock``, which the trainer only reads.

    version: number of updates of the engine's weights.
    clock: time spent on episodes so far.
    pausing: whether the trainer asks for engine and pool.
    """

    def __init__(self, agent: LanguageAgent, pool: Pool, buffer: GroupBuffer):
        self.agent = agent
        self.pool = pool
        self.buffer = buffer
        self.version = buffer.iteration
        self.clock = Clock()
        self.pausing = False
        self._resting = False  # the thread has left engine and pool to the trainer
        self._stopping = False
        self._changed = buffer.changed
        self._error: BaseException | None = None
        self._weights: deque[tuple[int, list[NamedTensor]]] = deque()  # published, not loaded yet
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

    def publish(self, copies: Sequence[NamedTensor], iteration: int) -> None:
        """Take copies of new weights for the engine, and open the groups that the buffer has room for.

        The tensors must be copies, since the next update changes the model. With ``rollout.deterministic`` earlier
        copies are kept until the groups of their version have been sampled.
        """
        with self._changed:
            if not self.buffer.settings.rollout.deterministic:
                self._weights.clear()
            self._weights.append((iteration, list(copies)))
            self.buffer.iteration = iteration
            self.buffer.open(self.buffer.room)
            self._changed.notify_all()

    def wait_for(self, find: Callable[[], T], seconds: float | None = None) -> T:
        """The result of ``find`` once it is true, or after ``seconds``. Raises the error that ended the thread."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                result = find()
                if result or (deadline is not None and time.monotonic() >= deadline):
                    return result
                if self._error is not None:
                    raise self._error
                if self._thread is None or not self._thread.is_alive():
                    raise RuntimeError("the sampling thread ended without an error")
                # What ``find`` did may be what the thread waits for: taking a group may drop episodes to sample again.
                self._changed.notify_all()
                # Woken by deliver and by the thread coming to rest; the tick notices a thread that ended otherwise.
                self._changed.wait(TICK)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """A context in which the caller can use engine and pool; the engine has the newest weights."""
        with self._changed:
            newest = self._weights[-1][0] if self._weights else self.version
        # Groups for older weights first: once the newest are loaded, these cannot be sampled any more.
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
        """Rest until the trainer has released engine and pool, and ``find`` returns something true.

        Woken by ``publish``, by groups that the trainer opens, by the end of ``rest`` and by ``stop``.
        """
        with self._changed:
            self._resting = True
            self._changed.notify_all()
            while True:
                if not self.pausing:
                    result = find()
                    if result:
                        break
                self.check()
                self._changed.wait(TICK)
            self.check()
            self._resting = False
            return result

    def load_weights(self, version: int | None = None) -> None:
        """Load the newest published weights up to ``version``. No response may be under way."""
        tensors: list[NamedTensor] | None = None
        with self._changed:
            # Versions in between are skipped: no group is left that needs them.
            while self._weights and (version is None or self._weights[0][0] <= version):
                self.version, tensors = self._weights.popleft()
        if tensors is not None:
            self.agent.engine.load_weights(tensors)

    def _run(self) -> None:
        try:
            # The current GPU is a setting of each thread, and a new one has the first.
            device = getattr(self.agent.engine, "device", None)
            if device is not None:
                claim_device(device)
            rolling = self.buffer.settings.rollout
            agent, sink = VersionedAgent(self.agent, self), GroupSink(self.buffer)
            source = BatchSource(self, sink) if rolling.deterministic else StreamSource(self, sink)
            loop = RolloutLoop(agent, self.pool, source, sink, rolling.concurrency, self.clock)
            loop.run(rolling.deterministic)
        except SamplingStopped:
            pass
        except BaseException as error:  # the trainer raises it in its next wait
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _needs_older(group: Group, newest: int) -> bool:
    """Whether a group has yet to be sampled with weights before ``newest``."""
    return group.version is not None and group.version < newest and not group.complete


class VersionedAgent:
    """An agent that records the weight version of its turns, and that can be stopped while it waits."""

    def __init__(self, agent: LanguageAgent, thread: SamplingThread):
        self.agent = agent
        self.thread = thread

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        full_slots = self.submit(states)
        missing = len(states) - len(full_slots)
        turns: dict[int, Turn] = {}
        while len(turns) < missing:
            self.thread.check()
            turns.update(self.collect(TICK))
        return [turns.get(state.slot) for state in states]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        return self.agent.submit(states) if states else []

    def collect(self, timeout: float | None) -> list[tuple[int, Turn]]:
        answers = self.agent.collect(TICK if timeout is None else timeout)
        # Weights change only when no response is under way.
        return [(slot, replace(turn, version=self.thread.version) if turn.sampled else turn) for slot, turn in answers]

    def forget(self, slot: int) -> None:
        self.agent.forget(slot)


class GroupSink:
    """Numbers the episodes of groups by slot, and delivers them to the buffer."""

    def __init__(self, buffer: GroupBuffer):
        self.buffer = buffer
        self._next_slot = FIRST_SLOT
        self._origins: dict[int, tuple[Group, int]] = {}  # group and sample of the episodes under way, by slot

    def start(self, group: Group, sample: int) -> tuple[int, Job]:
        """The slot and the job of an episode that begins."""
        slot = self._next_slot
        self._next_slot += 1
        self._origins[slot] = (group, sample)
        return slot, group.jobs[sample]

    def deliver(self, slot: int, episode: Episode) -> None:
        group, sample = self._origins.pop(slot)
        with self.buffer.changed:
            self.buffer.deliver(group, sample, episode)
            self.buffer.changed.notify_all()  # the trainer may wait for this group


class BatchSource:
    """Jobs of one batch after another, each with the weights of its version (``rollout.deterministic``)."""

    withholding = False  # new weights and the trainer wait for the end of the batch

    def __init__(self, thread: SamplingThread, sink: GroupSink):
        self.thread = thread
        self.sink = sink
        self._batch: deque[tuple[Group, int]] = deque()  # episodes of the batch under way that have not begun

    def prepare(self, loop: RolloutLoop) -> None:
        """Between batches, rest until the next one is open and load its weights."""
        self.thread.check()
        if not loop.states:
            self._batch.extend(self.thread.rest_until(self.thread.buffer.next_batch))
            group, _ = self._batch[0]
            self.thread.load_weights(group.version)

    def next_job(self) -> tuple[int, Job] | None:
        return self.sink.start(*self._batch.popleft()) if self._batch else None

    def wait_limit(self) -> float:
        self.thread.check()
        return TICK


class StreamSource:
    """Jobs whenever an episode has ended, with the newest weights.

    New weights are loaded as soon as the responses under way are finished: a turn comes from one policy, an episode may
    come from several.
    """

    def __init__(self, thread: SamplingThread, sink: GroupSink):
        self.thread = thread
        self.sink = sink

    @property
    def withholding(self) -> bool:
        return self.thread.interrupting

    def prepare(self, loop: RolloutLoop) -> None:
        """While no response is under way, let the trainer use engine and pool, load weights, or wait for episodes."""
        self.thread.check()
        while not loop.responding:
            if self.thread.pausing:
                loop.settle()  # before resting, because the deadlines of environments continue meanwhile
                self.thread.rest_until(lambda: True)
            self.thread.load_weights()
            if loop.states or self.thread.buffer.waiting:
                break
            self.thread.rest_until(lambda: self.thread.interrupting or self.thread.buffer.waiting)

    def next_job(self) -> tuple[int, Job] | None:
        with self.thread.buffer.changed:
            episode = self.thread.buffer.next_episode()
        return self.sink.start(*episode) if episode else None

    def wait_limit(self) -> float:
        self.thread.check()
        return TICK
