"""Trackers by name, imported when asked for; other packages add theirs by the entry points ``gagpo.trackers``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path

from gagpo.envs.errors import InvalidArgument, MissingPackage
from gagpo.trackers.base import Settings, Tracker, Trackers

BUILT_IN = {
    "tensorboard": "gagpo.trackers.tensorboard:TensorBoard",
    "trackio": "gagpo.trackers.trackio:Trackio",
    "wandb": "gagpo.trackers.wandb:Wandb",
    "mlflow": "gagpo.trackers.mlflow:Mlflow",
}
GROUP = "gagpo.trackers"


def known_trackers() -> dict[str, str]:
    """``module:Class`` of every tracker, by name."""
    return {**{found.name: found.value for found in entry_points(group=GROUP)}, **BUILT_IN}


def make_tracker(name: str) -> Tracker:
    """The tracker of that name, or of ``module:Class``.

    Raises :class:`InvalidArgument` for an unknown name, :class:`MissingPackage` when what it needs is not installed.
    """
    known = known_trackers()
    place = known.get(name, name if ":" in name else "")
    if not place:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InvalidArgument(
            f"unknown tracker {name!r}; the nearest is {near[0]!r} (known: {', '.join(sorted(known))})"
        )
    module, _, attribute = place.partition(":")
    try:
        make: Callable[[], Tracker] = attrgetter(attribute)(import_module(module))
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise MissingPackage(f"tracker {name!r} needs the package {package}: pip install {package}") from None
    except AttributeError:
        raise InvalidArgument(f"tracker {name!r}: {module} has no {attribute}") from None
    return make()


@contextmanager
def tracking(names: Sequence[str], run: Path, settings: Settings, resume_iteration: int = 0) -> Iterator[Trackers]:
    """Start the trackers called ``names`` and close them at the end, however it ends."""
    trackers = Trackers({name: make_tracker(name) for name in names})
    try:
        trackers.start(run, settings, resume_iteration)
        yield trackers
    finally:
        trackers.close()
