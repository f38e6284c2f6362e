"""The environments of a run, opened in one pool.

Environments of a mixture share one pool, so that the rollout knows of no mixture.
"""

from __future__ import annotations

from contextlib import ExitStack

from gagpo.envs.pool import Pool
from gagpo.envs.pool.mixed import MixedPool
from gagpo.envs.pool.opening import open_pool
from gagpo.settings import RunEnvironment, RunSettings


def open_run_pool(settings: RunSettings) -> Pool:
    """A pool of all environments of a run."""
    with ExitStack() as stack:  # an environment that cannot be opened closes those before it
        pools = {env.name: stack.enter_context(_open_pool(settings, env)) for env in settings.all_environments}
        stack.pop_all()
    return pools[""] if "" in pools else MixedPool(pools)


def _open_pool(settings: RunSettings, env: RunEnvironment) -> Pool:
    rolling = settings.rollout
    return open_pool(
        env.environment.id,
        env.environment.kwargs,
        workers=rolling.workers,
        step_timeout=rolling.step_timeout,
        reset_timeout=rolling.reset_timeout,
        memory_limit_mb=rolling.worker_memory,
    )
