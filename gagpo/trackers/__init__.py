"""Trackers, which receive the metrics of a run: TensorBoard, wandb, or your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.registry import Registry
from gagpo.trackers.base import Settings, Tracker, Trackers

__all__ = ["TRACKERS", "Tracker", "Trackers", "require_trackers", "tracking"]

METHODS = ("start", "log", "close")


def _require_methods(tracker: Any, title: str) -> None:
    """Raise InvalidArgument unless a registered object can be called for something with a tracker's methods."""
    if not callable(tracker):
        raise InvalidArgument(f"{title} is not a tracker", advice=f"give a class with the methods {', '.join(METHODS)}")
    if isinstance(tracker, type):
        for method in METHODS:
            if not callable(getattr(tracker, method, None)):
                raise InvalidArgument(f"{title} has no method {method}", advice="add it to the class")


TRACKERS: Registry[Callable[[], Tracker]] = Registry(
    "tracker",
    "gagpo.trackers",
    {"tensorboard": "gagpo.trackers.tensorboard:TensorBoard", "wandb": "gagpo.trackers.wandb:Wandb"},
)


def require_trackers(names: Sequence[str]) -> None:
    """Raise GagpoError unless the trackers called ``names`` can be imported and have a tracker's methods.

    This package's own are not imported.
    """
    for name in names:
        if name not in TRACKERS.builtin:
            _require_methods(TRACKERS.find(name), f"tracker {name}")
        elif find_spec(name) is None:  # each is called as its package
            raise MissingPackage(
                f"tracker {name} needs the package {name}",
                key="trackers",
                advice=f"pip install {name}, or set trackers=[]",
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
