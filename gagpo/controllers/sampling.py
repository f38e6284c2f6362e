"""DAPO's dynamic sampling and overlong shaping (arXiv 2503.14476): decisions on what was sampled, no state."""

from __future__ import annotations

import dataclasses

import numpy as np

from gagpo.controllers.settings import DynamicSampling, Overlong
from gagpo.credit.grouping import varies
from gagpo.credit.turns import Turns


def keep_episodes(turns: Turns, settings: DynamicSampling | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of task groups that did not all come out alike; all without settings."""
    if settings is None:
        return np.ones(turns.episodes, np.bool_)
    return_E = turns.coded_return_E(settings.reward)
    return varies(return_E, turns.group_index_E, turns.groups)[turns.group_index_E]


def shape_overlong(turns: Turns, settings: Overlong | None) -> Turns:
    """The turns with the price of long responses taken off their rewards; the same turns without settings."""
    if settings is None:
        return turns
    price_N = overlong_penalty(turns.tokens_N, settings.limit, settings.buffer)
    return dataclasses.replace(turns, reward_N=turns.reward_N + price_N)


def overlong_penalty(tokens_N: np.ndarray, limit: int, buffer: int) -> np.ndarray:
    """``min(-(tokens - (limit - buffer))/buffer, 0)``: what is added to each reward, float64[N] (arXiv 2503.14476).

    >>> overlong_penalty(np.array([300, 448, 512]), limit=512, buffer=128).tolist()
    [0.0, -0.5, -1.0]
    """
    return np.minimum(-(np.asarray(tokens_N) - (limit - buffer)) / buffer, 0.0) + 0.0
