"""Environments in processes of their own, supervised: stepped as they become ready, replaced when they break."""

from gagpo.envs.pool.pool import EnvironmentBroken, Pool
from gagpo.envs.pool.slots import Counters, Event

__all__ = ["Counters", "EnvironmentBroken", "Event", "Pool"]
