"""Heartbeats of the ranks: end this rank when another stops beating.

Torch's own time limit of a collective call cannot tell a rank that is dead from one whose episodes take long. With a
short limit slow ranks would end runs, with a long one a dead rank would hold all GPUs for an hour.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gagpo.base.background import Background, JobTimeout
from gagpo.base.errors import GagpoError
from gagpo.distributed.environment import LOST, PARENT
from gagpo.distributed.errors import RankFailed

T = TypeVar("T")

ENDED = "ended: "
EXIT_SECONDS = 5.0  # for the main thread to end in order; a collective call cannot be interrupted


class Watch:
    """Heartbeats in the store where the ranks met.

    A collective call waits for all ranks and cannot be interrupted, so threads must find out when a rank is gone. One
    (``_beat``) writes this rank's number and reads those of the others; its calls to the store have no deadline and may
    wait forever. The other (``_supervise``) makes no calls: it waits for the first one to report, and ends the process
    when there is a reason or when the first thread has been silent for the deadline.

    The store ends with the process that holds it, so a store that does not answer means that this process is gone.
    Silence is counted in beats of this process: if it was stopped itself, the others get their full time again.

    deadline: seconds without a beat after which a rank is lost. A slow rank keeps beating.
    """

    def __init__(self, store: Store, rank: int, world_size: int, deadline: float):
        self.rank = rank
        self.world_size = world_size
        self.deadline = deadline
        self.store = PrefixStore("watch", store)
        self.store.set_timeout(timedelta(seconds=deadline))
        self.every = min(2.0, deadline / 5)
        self.parent = int(os.environ.get(PARENT, 0))
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._store_owner = "the torchrun that holds the ranks' store" if agent else f"rank 0 of {world_size}"
        # Events and single assignments, no lock: a thread that hangs in the store must hold nothing that others need.
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._answered = threading.Event()  # set when the store answers, cleared when that is seen
        self._end_reason = ""  # why this rank has to end
        self._reason = ""
        self._reports = False  # whether this rank prints the reason
        self._stopping: Callable[[], bool] = lambda: False

    def __enter__(self) -> Watch:
        self.store.set(f"beat {self.rank}", "0")
        self._thread = threading.Thread(target=self._supervise, name="ranks' watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._beat, name="ranks' beats", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RankFailed):
            error.reported = True
        elif isinstance(error, GagpoError):
            error.reported = not (self._reports if self._lost.is_set() else self._first_to_report())
        self._ended.set()
        self._thread.join(2 * self.every)
        if isinstance(error, Exception):  # all ranks are interrupted together, and end by themselves
            self._publish_end(type(error).__name__)

    def lost_rank(self) -> str:
        """Wait until a rank is known to be lost, and say which; empty if all still beat after the deadline."""
        until = time.monotonic() + self.deadline + EXIT_SECONDS + 2 * self.every
        while time.monotonic() < until and not self._stopping() and not self._lost.wait(0.1):
            pass
        return self._reason

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Stop looking for lost ranks once ``stopping`` says that this rank was told to end."""
        self._stopping = stopping

    def _first_to_report(self) -> bool:
        """Whether this rank is the first to report an error, so that only one message appears."""
        return self._from_store(lambda: self.store.add("reports", 1)) in (None, 1)

    def _publish_end(self, why: str) -> None:
        """Tell the others, and give them time to read it if the store ends with this process."""

        def publish() -> bool:
            self.store.set(f"beat {self.rank}", f"{ENDED}{why}")
            return True

        if self._from_store(publish) and self.rank == 0:
            time.sleep(2 * self.every)

    def _from_store(self, call: Callable[[], T]) -> T | None:
        """The answer of the store; None if none comes in time."""
        answers: list[T] = []
        request = Background("the ranks' store", EXIT_SECONDS)
        try:
            request.start(lambda: answers.append(call()))
            request.wait()
        except (JobTimeout, RuntimeError, dist.DistError):
            return None
        return answers[0]

    def _beat(self) -> None:
        """Beat, and read the beats of the others, until this rank must end. Calls to the store have no deadline."""
        beat = 0
        last_beats = {rank: ("", 0) for rank in range(self.world_size) if rank != self.rank}  # and beats since a change
        while not self._end_reason and not self._ended.wait(self.every):
            beat += 1
            try:
                self.store.set(f"beat {self.rank}", str(beat))
                for rank, (before, unchanged) in last_beats.items():  # a rank is alive as long as its number changes
                    name = f"rank {rank} of {self.world_size}"
                    value = self.store.get(f"beat {rank}").decode() if self.store.check([f"beat {rank}"]) else ""
                    unchanged = 0 if value != before or not value else unchanged + 1
                    last_beats[rank] = (value, unchanged)
                    if value.startswith(ENDED):
                        self._end_reason = self._end_reason or f"{name} has ended ({value.removeprefix(ENDED)})"
                    elif unchanged * self.every > self.deadline:
                        self._end_reason = self._end_reason or self._silent(name)
            except (RuntimeError, dist.DistError):
                self._end_reason = (
                    self._end_reason or f"{self._store_owner} is gone, and the store of the ranks with it"
                )
            self._answered.set()

    def _supervise(self) -> None:
        """End this rank once there is a reason, or once the store has been silent for the deadline."""
        silent = 0
        while not self._ended.wait(self.every):
            silent = 0 if self._answered.is_set() else silent + 1
            self._answered.clear()
            if self.parent and os.getppid() != self.parent:
                return self._end("the process that started the ranks is gone")
            if silent * self.every > self.deadline:
                return self._end(self._silent(self._store_owner))
            if self._end_reason:
                return self._end(self._end_reason)
        return None

    def _silent(self, name: str) -> str:
        return f"{name} has given no sign of life for {self.deadline:g} s"

    def _end(self, reason: str) -> None:
        """Tell the others, give the main thread a moment to end in order, and exit.

        The main thread may wait in a collective call for the lost rank; then only ``os._exit`` ends the process.
        """
        self._reason = f"{reason}; this one (rank {self.rank}) ends too: continue with gagpo train --resume RUN"
        self._reports = self._first_to_report()
        self._lost.set()
        if self._ended.wait(EXIT_SECONDS):
            return
        if self._reports:
            print(f"gagpo: {self._reason}", file=sys.stderr, flush=True)
        self._publish_end("RankLost")
        os._exit(LOST)
