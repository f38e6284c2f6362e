"""Open the pool of an environment by its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gagpo.envs.base import Kwargs
from gagpo.envs.lookup import find_spec, maker
from gagpo.envs.pool.pool import WorkerPool
from gagpo.envs.pool.slots import Pool


def open_pool(
    env_id: str,
    env_kwargs: Kwargs | None = None,
    *,
    workers: int | Literal["auto"] = 2,
    memory_limit_mb: int | None = None,
    **options: Any,
) -> Pool:
    """Open the pool of ``env_id``: that of its class's ``open_pool``, or worker processes if it has no such method."""
    opener: Callable[..., Pool] | None = getattr(maker(env_id), "open_pool", None)
    if opener is not None:
        arguments = {**find_spec(env_id).kwargs, **(env_kwargs or {})}  # an address registers its servers
        return opener(arguments, memory_limit_mb, **options)
    return WorkerPool(env_id, env_kwargs, workers=workers, memory_limit_mb=memory_limit_mb, **options)
