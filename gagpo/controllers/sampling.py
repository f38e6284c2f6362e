"""DAPO's dynamic sampling and overlong shaping (arXiv 2503.14476): decisions on what was sampled, no state."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import varies
from gagpo.envs.errors import InvalidArgument
from gagpo.objectives.options import LIMIT
from gagpo.options import Options


class DynamicSampling(Options):
    """DAPO: drop groups whose episodes all came out alike, sample on until the batch is full (arXiv 2503.14476)."""

    rounds: int = Field(default=10, ge=1)
    reward: Literal["sum", "success"] = "sum"


class Overlong(Options):
    """DAPO: a response longer than ``limit - buffer`` tokens costs reward, linearly up to 1 at ``limit``, then 1.

    limit: tokens; None follows the rollout's response limit. buffer: None for a quarter of the limit.
    """

    limit: int | None = Field(default=None, ge=1)
    buffer: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.limit is not None and self.buffer is not None and self.buffer > self.limit:
            raise InvalidArgument(f"the buffer of {self.buffer} tokens is longer than the limit of {self.limit}")
        return self

    def resolved(self, max_tokens: int = LIMIT) -> Overlong:
        """With the values that follow the response limit put in; InvalidArgument where the buffer is longer than it."""
        limit = self.limit or max_tokens
        return Overlong(limit=limit, buffer=self.buffer or max(1, limit // 4))


def keep_episodes(turns: Turns, settings: DynamicSampling | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of task groups that did not all come out alike; all without settings."""
    if settings is None:
        return np.ones(turns.episodes, np.bool_)
    return_E = turns.coded_return_E(settings.reward)
    return np.asarray(varies(return_E, turns.group_index_E, turns.groups)[turns.group_index_E])


def shape_overlong(turns: Turns, settings: Overlong | None) -> Turns:
    """The turns with the price of long responses taken off their rewards; the same turns without settings."""
    if settings is None:
        return turns
    settings = settings.resolved()
    assert settings.limit is not None and settings.buffer is not None
    price_N = overlong_penalty(turns.tokens_N, settings.limit, settings.buffer)
    return dataclasses.replace(turns, reward_N=turns.reward_N + price_N)


def overlong_penalty(tokens_N: np.ndarray, limit: int, buffer: int) -> np.ndarray:
    """What is added to each reward, float64[N]: ``-(tokens - (limit - buffer))/buffer``, within [-1, 0] (2503.14476).

    >>> overlong_penalty(np.array([300, 448, 512, 600]), limit=512, buffer=128).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    return np.clip(-(np.asarray(tokens_N) - (limit - buffer)) / buffer, -1.0, 0.0) + 0.0
