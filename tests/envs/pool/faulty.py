"""Play an environment that breaks on request, through a pool."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from gagpo.envs.pool import Event, Pool

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"
PATIENCE = 60.0  # for what happens at once on an idle machine


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"still waiting for: {what}"
        time.sleep(0.02)


def gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(pool: Pool, count: int) -> dict[int, Event]:
    """The next ``count`` events by slot; more than one of a slot, or none in time, is a failure."""
    events: dict[int, Event] = {}
    end = time.monotonic() + PATIENCE
    while len(events) < count:
        assert time.monotonic() < end, f"{len(events)} of {count} events came"
        for event in pool.wait(timeout=1.0):
            assert event.slot not in events
            events[event.slot] = event
    return events


def start(pool: Pool, slots: int) -> dict[int, Event]:
    for slot in range(slots):
        pool.reset(slot, "quiet", seed=slot)
    events = answers(pool, slots)
    assert {event.kind for event in events.values()} == {"reset"}
    return events


def beginning(event: Event) -> str:
    """What of the first observation does not depend on the process."""
    return event.observation.split(" process ")[0]


def worker_of(event: Event) -> int:
    return int(event.observation.split()[-1])
