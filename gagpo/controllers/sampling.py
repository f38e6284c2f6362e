"""DAPO's dynamic sampling and overlong shaping (arXiv 2503.14476): decisions on what was sampled, no state."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.cells import Cell
from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import varies
from gagpo.envs.errors import InvalidArgument


class DynamicSampling(Cell):
    """DAPO: drop groups whose episodes all came out alike, sample on until the batch is full (arXiv 2503.14476)."""

    rounds: int = Field(default=10, ge=1)
    reward: Literal["sum", "success"] = "sum"


class Overlong(Cell):
    """DAPO: a response longer than ``limit - buffer`` tokens costs reward, linearly up to 1 at ``limit``."""

    limit: int = Field(default=512, ge=1)
    buffer: int = Field(default=128, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.buffer > self.limit:
            raise InvalidArgument(f"the buffer of {self.buffer} tokens is longer than the limit of {self.limit}")
        return self


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
