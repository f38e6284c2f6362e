"""Environments in supervised worker processes."""

from gagpo.envs.pool.pool import EnvironmentBroken, WorkerPool
from gagpo.envs.pool.slots import Counters, Event, Pool

__all__ = ["Counters", "EnvironmentBroken", "Event", "Pool", "WorkerPool"]
