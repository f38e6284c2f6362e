"""Environments in processes of their own, supervised: stepped as they become ready, replaced when they break."""

from gagpo.envs.pool.events import Counters, Event
from gagpo.envs.pool.pool import EnvironmentBroken, Pool

__all__ = ["Counters", "EnvironmentBroken", "Event", "Pool"]
