"""Trackers, which receive the metrics of a run: TensorBoard, wandb, or your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gagpo.base.registry import Registry
from gagpo.trackers.base import Settings, Tracker, Trackers

__all__ = ["TRACKERS", "Tracker", "Trackers", "tracking"]

TRACKERS: Registry[Callable[[], Tracker]] = Registry(
    "tracker",
    "gagpo.trackers",
    {
        "tensorboard": "gagpo.trackers.tensorboard:TensorBoard",
        "wandb": "gagpo.trackers.wandb:Wandb",
    },
)


@contextmanager
def tracking(names: Sequence[str], run: Path, settings: Settings, resume_iteration: int = 0) -> Iterator[Trackers]:
    """Start the trackers called ``names`` and close them at the end."""
    trackers = Trackers({name: TRACKERS.find(name)() for name in names})
    try:
        for tracker in trackers.trackers.values():
            tracker.start(run, settings, resume_iteration)
        yield trackers
    finally:
        trackers.close()
