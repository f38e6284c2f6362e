"""Who is still there: a sign of life from every rank, and the end of this one when another has given none for long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gagpo.distributed.environment import LOST, PARENT
from gagpo.distributed.errors import RankFailed
from gagpo.envs.errors import GagpoError

ENDED = "ended: "
EXIT_SECONDS = 5.0
"""Seconds that the main thread has to end in order once a rank is lost; a collective call cannot be interrupted."""


class Watch:
    """A thread that beats and listens for the beats of the others, over the store that the ranks met at.

    deadline: seconds without a beat after which a rank is lost. A rank that is merely slow keeps beating.
    """

    def __init__(self, store: Store, rank: int, world: int, deadline: float):
        self.rank, self.world, self.deadline = rank, world, deadline
        self.store = PrefixStore("watch", store.clone())  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=deadline))
        self.every = min(2.0, deadline / 5)
        self.parent = int(os.environ.get(PARENT, 0))
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._reason, self._reports = "", False
        self._stopping: Callable[[], bool] = lambda: False

    def __enter__(self) -> Watch:
        self.store.set(f"beat {self.rank}", "0")
        self._thread = threading.Thread(target=self._run, name="ranks' watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RankFailed):
            error.reported = True
        elif isinstance(error, GagpoError):
            error.reported = not (self._reports if self._lost.is_set() else self._first_to_report())
        self._ended.set()  # without an error all have met at the end: nobody waits for anybody any more
        self._thread.join(2 * self.every)
        if isinstance(error, Exception):  # an interruption is one of all ranks, who end in their own time
            self._publish_end(type(error).__name__)

    def lost_rank(self) -> str:
        """Which rank is gone, once that is known, within the deadline; empty where all still beat."""
        until = time.monotonic() + self.deadline + 2 * self.every
        while time.monotonic() < until and not self._stopping() and not self._lost.wait(0.1):
            pass
        return self._reason

    def heed(self, stopping: Callable[[], bool]) -> None:
        """Look for lost ranks no longer once ``stopping`` says that this one has been told to end itself."""
        self._stopping = stopping

    def _first_to_report(self) -> bool:
        """Whether this rank is the first to speak of an error, so that one message appears and not one per rank."""
        try:
            return self.store.add("reports", 1) == 1
        except (RuntimeError, dist.DistError):
            return True

    def _publish_end(self, why: str) -> None:
        """Let the others know, and leave them the time to hear it where the store ends with this process."""
        try:
            self.store.set(f"beat {self.rank}", f"{ENDED}{why}")
        except (RuntimeError, dist.DistError):
            return
        if self.rank == 0:
            time.sleep(2 * self.every)

    def _run(self) -> None:
        others = [rank for rank in range(self.world) if rank != self.rank]
        beat, heard = 0, {rank: ("", time.monotonic()) for rank in others}
        while not self._ended.wait(self.every):
            # Beat, then listen: a rank that said its end or fell silent for too long ends this one.
            beat += 1
            if self.parent and os.getppid() != self.parent:
                return self._end("the process that started the ranks is gone")
            try:
                self.store.set(f"beat {self.rank}", str(beat))
                for rank in others:  # alive, as long as its number changes
                    value = self.store.get(f"beat {rank}").decode() if self.store.check([f"beat {rank}"]) else ""
                    now = time.monotonic()
                    if value.startswith(ENDED):
                        return self._end(f"rank {rank} of {self.world} has ended ({value.removeprefix(ENDED)})")
                    if value != heard[rank][0]:
                        heard[rank] = (value, now)
                    elif now - heard[rank][1] > self.deadline:
                        silent = f"rank {rank} of {self.world} has given no sign of life for {self.deadline:g} s"
                        return self._end(silent)
            except (RuntimeError, dist.DistError):
                if self._ended.is_set():
                    return None
                return self._end(f"rank 0 of {self.world} is gone, and the store of the ranks with it")
        return None

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
