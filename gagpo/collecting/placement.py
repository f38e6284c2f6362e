"""Where this process gets its environments and its servers from: its own machine, unless a cluster placed it.

The trainer asks here, and knows nothing of clusters; without one, nothing of Ray is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from gagpo.envs.pool import Pool
from gagpo.settings import EngineSettings, RunSettings


class Placement(Protocol):
    """What a cluster gives to a rank."""

    def pool(self, settings: RunSettings) -> Any:
        """Hosts of environments, with the contract of a pool; None for a pool on the rank's own node."""
        ...

    def engine_arguments(self, settings: EngineSettings) -> Mapping[str, Any]:
        """What the engine is given beside its settings."""
        ...


_place: Placement | None = None


def settle(place: Placement | None) -> None:
    """This process has been placed, or no longer is."""
    global _place
    _place = place


def open_pool(settings: RunSettings) -> Pool:
    """The environments of a run: in processes on this machine, or wherever the cluster has put them."""
    placed = None if _place is None else _place.pool(settings)
    if placed is not None:
        return cast(Pool, placed)  # the same contract, kept by hosts elsewhere
    rolling = settings.rollout
    return Pool(settings.environment.id, settings.environment.kwargs, **pool_options(rolling))


def pool_options(rolling: Any) -> dict[str, Any]:
    """The options of a pool that the rollout's settings name."""
    return {
        "workers": rolling.workers,
        "step_deadline": rolling.step_deadline,
        "reset_deadline": rolling.reset_deadline,
        "memory_limit_mb": rolling.worker_memory,
    }


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """Keyword arguments of the run's engine."""
    placed = {} if _place is None else dict(_place.engine_arguments(settings))
    return {**settings.arguments(), **placed}
