"""Where a rank gets its environments and its servers from. The trainer is given a placement and knows no clusters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Literal, TypedDict

from gagpo.envs.pool import Pool
from gagpo.envs.pool.mixed import MixedPool
from gagpo.envs.remote.pool import open_pool
from gagpo.settings import EngineSettings, EnvironmentSettings, RolloutSettings, RunSettings


class PoolOptions(TypedDict):
    """The options of a pool that the rollout's settings name."""

    workers: int | Literal["auto"]
    step_deadline: float
    reset_deadline: float
    memory_limit_mb: int | None


class LocalPlacement:
    """This machine. A cluster's placement overrides what the cluster has instead."""

    def open_pool(self, settings: RunSettings) -> Pool:
        """The environments of a run; of several worlds a pool for each, which answer as one."""
        with ExitStack() as opened:  # a world that cannot be opened closes those before it
            pools = {
                world.name: opened.enter_context(self.open_world(settings.built(world.environment), settings.rollout))
                for world in settings.worlds
            }
            opened.pop_all()
        return pools[""] if "" in pools else MixedPool(pools)

    def open_world(self, world: EnvironmentSettings, rolling: RolloutSettings) -> Pool:
        """The environments of one world, or what keeps the contract of a pool elsewhere."""
        return open_pool(world.id, world.kwargs, **pool_options(rolling))

    def engine_arguments(self, settings: EngineSettings) -> Mapping[str, object]:
        """Keyword arguments of the run's engine."""
        return settings.arguments()


def pool_options(rolling: RolloutSettings) -> PoolOptions:
    return {
        "workers": rolling.processes,
        "step_deadline": rolling.step_deadline,
        "reset_deadline": rolling.reset_deadline,
        "memory_limit_mb": rolling.worker_memory,
    }
