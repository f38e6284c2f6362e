"""A heartbeat of every rank, and the end of this rank when another one stops beating."""

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

from gagpo.base.errors import GagpoError
from gagpo.distributed.background import Background, Overdue
from gagpo.distributed.environment import LOST, PARENT
from gagpo.distributed.errors import RankFailed

T = TypeVar("T")

ENDED = "ended: "
EXIT_SECONDS = 5.0
"""Seconds that the main thread has to end in order once a rank is lost; a collective call cannot be interrupted."""


class Watch:
    """A thread that beats and listens for the beats of the others, over the store that the ranks met at.

    deadline: seconds without a beat after which a rank is lost. A rank that is merely slow keeps beating. The store
    ends with whoever holds it: that it does not answer is a sign of that one's end, which a second thread looks for.

    Silence is counted in beats of this process: if that was stopped itself, the others have all their time again.
    """

    def __init__(self, store: Store, rank: int, world_size: int, deadline: float):
        self.rank, self.world_size, self.deadline = rank, world_size, deadline
        self.store = PrefixStore("watch", store)
        self.store.set_timeout(timedelta(seconds=deadline))
        self.every = min(2.0, deadline / 5)
        self.parent = int(os.environ.get(PARENT, 0))
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._holder = "the torchrun that holds the ranks' store" if agent else f"rank 0 of {world_size}"
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._answered = threading.Event()  # by the store, since the last look
        self._heard = ""  # why this rank has to end
        self._reason, self._reports = "", False
        self._stopping: Callable[[], bool] = lambda: False

    def __enter__(self) -> Watch:
        self.store.set(f"beat {self.rank}", "0")
        self._thread = threading.Thread(target=self._look, name="ranks' watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._listen, name="ranks' beats", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RankFailed):
            error.reported = True
        elif isinstance(error, GagpoError):
            error.reported = not (self._reports if self._lost.is_set() else self._first_to_report())
        self._ended.set()  # without an error all ranks have met at the end
        self._thread.join(2 * self.every)
        if isinstance(error, Exception):  # an interruption is one of all ranks, who end in their own time
            self._publish_end(type(error).__name__)

    def lost_rank(self) -> str:
        """Which rank is gone, once that is known, within the deadline; empty where all still beat."""
        until = time.monotonic() + self.deadline + EXIT_SECONDS + 2 * self.every
        while time.monotonic() < until and not self._stopping() and not self._lost.wait(0.1):
            pass
        return self._reason

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Look for lost ranks only until ``stopping`` says that this rank has been told to end."""
        self._stopping = stopping

    def _first_to_report(self) -> bool:
        """Whether this rank is the first to speak of an error, so that one message appears and not one per rank."""
        return self._asked(lambda: self.store.add("reports", 1)) in (None, 1)

    def _publish_end(self, why: str) -> None:
        """Let the others know, and leave them the time to hear it where the store ends with this process."""

        def say() -> bool:
            self.store.set(f"beat {self.rank}", f"{ENDED}{why}")
            return True

        if self._asked(say) and self.rank == 0:
            time.sleep(2 * self.every)

    def _asked(self, call: Callable[[], T]) -> T | None:
        """The answer of the store; None without an answer in time."""
        answers: list[T] = []
        asking = Background("the ranks' store", EXIT_SECONDS)
        try:
            asking.start(lambda: answers.append(call()))
            asking.wait()
        except (Overdue, RuntimeError, dist.DistError):
            return None
        return answers[0]

    def _listen(self) -> None:
        """Beat, and listen to all others, until this rank has to end; no call to the store has a deadline."""
        beat, last = 0, {rank: ("", 0) for rank in range(self.world_size) if rank != self.rank}
        while not self._heard and not self._ended.wait(self.every):
            beat += 1
            try:
                self.store.set(f"beat {self.rank}", str(beat))
                for rank, (before, silent) in last.items():  # alive, as long as its number changes
                    value = self.store.get(f"beat {rank}").decode() if self.store.check([f"beat {rank}"]) else ""
                    last[rank] = (value, 0 if value != before or not value else silent + 1)
                    if value.startswith(ENDED):
                        self._heard = (
                            self._heard or f"rank {rank} of {self.world_size} has ended ({value.removeprefix(ENDED)})"
                        )
                    elif last[rank][1] * self.every > self.deadline:
                        self._heard = self._heard or self._silent(f"rank {rank} of {self.world_size}")
            except (RuntimeError, dist.DistError):
                self._heard = self._heard or f"{self._holder} is gone, and the store of the ranks with it"
            self._answered.set()

    def _look(self) -> None:
        """End this rank once there is a reason, or once the store has been silent for the deadline."""
        silent = 0
        while not self._ended.wait(self.every):
            silent = 0 if self._answered.is_set() else silent + 1
            self._answered.clear()
            if self.parent and os.getppid() != self.parent:
                return self._end("the process that started the ranks is gone")
            if silent * self.every > self.deadline:
                return self._end(self._silent(self._holder))
            if self._heard:
                return self._end(self._heard)
        return None

    def _silent(self, who: str) -> str:
        return f"{who} has given no sign of life for {self.deadline:g} s"

    def _end(self, reason: str) -> None:
        """Say it, leave the main thread a moment to end in order, and end."""
        self._reason = f"{reason}; this one (rank {self.rank}) ends too: continue with gagpo train --resume RUN"
        self._reports = self._first_to_report()
        self._lost.set()
        if self._ended.wait(EXIT_SECONDS):
            return
        if self._reports:
            print(f"gagpo: {self._reason}", file=sys.stderr, flush=True)
        self._publish_end("RankLost")
        os._exit(LOST)
