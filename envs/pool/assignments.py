"""What a pool notes of the episode in each slot, and of each of its workers."""

from __future__ import annotations

import time
from collections import deque
from typing import Any


class Episode:
    """A slot's present episode. A reset makes a new one, so that a late answer to the old one is known by identity."""

    __slots__ = ("charges", "error", "live", "lost", "pending", "seed", "slot", "task", "worker")

    def __init__(self, slot: int, task: str, seed: int | None, worker: Worker):
        self.slot = slot
        self.task = task
        self.seed = seed
        self.worker = worker
        self.pending = True  # the caller waits for an event
        self.live = False  # the caller may step
        self.lost = False  # its worker died while the caller was thinking
        self.charges = 0  # how often it broke something
        self.error = ""  # why it starts over


class Worker:
    """What the pool knows of one worker, whose number stays when its process is replaced."""

    def __init__(self, number: int):
        self.number = number
        self.load = 0  # slots assigned
        self.queue: deque[tuple[Episode, str]] = deque()  # unanswered requests, oldest first
        self.outbox: list[tuple[Any, ...]] = []  # requests not yet sent
        self.sent = 0  # how much of the queue is sent
        self.since = time.monotonic()  # no later than this did the worker come to its present request

    def forget(self) -> None:
        """Forget what the previous process was asked."""
        self.queue.clear()
        self.outbox.clear()
        self.sent = 0
        self.since = time.monotonic()
