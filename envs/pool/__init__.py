"""Environments in processes of their own, supervised: stepped as they become ready, replaced when they break."""

from gagpo.envs.pool.pool import EnvironmentBroken, WorkerPool
from gagpo.envs.pool.slots import Counters, Event, Pool

__all__ = ["Counters", "EnvironmentBroken", "Event", "Pool", "WorkerPool"]
