"""DAPO's dynamic sampling and overlong shaping (arXiv 2503.14476), RAGEN's variance filter (2504.20073, 2604.06268)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import group_std, varies
from gagpo.objectives.options import LIMIT

SLACK = 0.01
"""RAGEN-2: the kept spread may fall short of its share by this much."""


class DynamicSampling(Options):
    """DAPO: replace groups of equal returns, for at most ``rounds`` rounds of sampling."""

    rounds: int = Field(default=10, ge=1)


class VarianceFilter(Options):
    """RAGEN: train only on the groups with the largest deviation of return, without replacement.

    by: ``groups`` keeps ``share`` of all groups, rounded down, at least one (StarPO-S, arXiv 2504.20073). ``spread``
        keeps the fewest groups whose deviations sum to ``share - .01`` of the total (RAGEN-2, arXiv 2604.06268, which
        recommends .9), and drops groups of equal returns.
    """

    by: Literal["groups", "spread"] = "groups"
    share: float = Field(default=0.25, gt=0, le=1)


class Overlong(Options):
    """DAPO: a penalty on responses above ``limit - buffer`` tokens, which rises linearly to 1 at ``limit``.

    limit: tokens; None for the rollout's response limit.
    buffer: tokens; None for a quarter of the limit.
    """

    limit: int | None = Field(default=None, ge=1)
    buffer: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.limit is not None and self.buffer is not None and self.buffer > self.limit:
            raise InvalidArgument(f"the buffer of {self.buffer} tokens is longer than the limit of {self.limit}")
        return self

    def resolved(self, max_tokens: int = LIMIT) -> Overlong:
        """Fill in the values that follow the response limit; InvalidArgument if the buffer exceeds it."""
        limit = self.limit or max_tokens
        return Overlong(limit=limit, buffer=self.buffer or max(1, limit // 4))


def keep_episodes(turns: Turns, settings: DynamicSampling | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of task groups with different returns; all without settings."""
    if settings is None:
        return np.ones(turns.episodes, np.bool_)
    return np.asarray(varies(turns.return_E, turns.group_index_E, turns.groups)[turns.group_index_E])


def keep_varied(turns: Turns, settings: VarianceFilter | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of the task groups with the largest deviation; all without settings.

    The first of equal groups is kept. Each environment keeps its own share, since their rewards are not comparable.
    """
    kept_E = np.ones(turns.episodes, np.bool_)
    if settings is None:
        return kept_E
    for own_E, own in turns.by_env():
        spread_G = group_std(own.return_E, own.group_index_E, own.groups)
        order_G = np.argsort(-spread_G, kind="stable")
        if settings.by == "groups":
            kept = max(int(settings.share * own.groups), 1)
        else:
            before_G = np.append(0.0, np.cumsum(spread_G[order_G])[:-1])
            needed = settings.share * spread_G.sum() - SLACK
            kept = int(((before_G < needed) & (spread_G[order_G] > 0)).sum())
        kept_E[own_E] = np.isin(own.group_index_E, order_G[:kept])
    return kept_E


def shape_overlong(turns: Turns, settings: Overlong | None, limit_N: np.ndarray | None = None) -> Turns:
    """Add :func:`overlong_penalty` to the rewards; without settings, return the turns as they are.

    limit_N: response limit of each turn, where environments have different ones.
    """
    if settings is None:
        return turns
    price_N = np.zeros(turns.turns)
    for most in [LIMIT] if limit_N is None else np.unique(limit_N).tolist():
        own_N = np.ones(turns.turns, np.bool_) if limit_N is None else limit_N == most
        chosen = settings.resolved(most)
        assert chosen.limit is not None and chosen.buffer is not None
        price_N[own_N] = overlong_penalty(turns.tokens_N[own_N], chosen.limit, chosen.buffer)
    return dataclasses.replace(turns, reward_N=turns.reward_N + price_N)


def overlong_penalty(tokens_N: np.ndarray, limit: int, buffer: int) -> np.ndarray:
    """``-(tokens - (limit - buffer))/buffer``, clipped to [-1, 0], float64[N].

    >>> overlong_penalty(np.array([300, 448, 512, 600]), limit=512, buffer=128).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    return np.clip(-(np.asarray(tokens_N) - (limit - buffer)) / buffer, -1.0, 0.0) + 0.0
