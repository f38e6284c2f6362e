"""What the pool tells its caller: the answer to each request, and how often things broke."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from gagpo.envs.base import Info


class Event(NamedTuple):
    """The answer to one reset or step.

    kind: ``reset`` (the first observation), ``step``, ``restarted`` (a first observation again: the turns so far are
    void) or ``failed`` (the episode is over for good; ``error`` says why, and the slot is free).
    error: empty but for ``restarted`` and ``failed``, where it says what broke.
    """

    slot: int
    kind: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info
    error: str = ""


@dataclass
class Counters:
    """What a pool has seen. ``crashes`` and ``hangs`` count workers, ``errors`` broken answers of an environment,
    ``restarts`` episodes started over, ``failures`` episodes given up, ``steps`` and ``resets`` good answers."""

    crashes: int = 0
    hangs: int = 0
    errors: int = 0
    restarts: int = 0
    failures: int = 0
    steps: int = 0
    resets: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
