"""DAPO's dynamic sampling and overlong shaping (arXiv 2503.14476), RAGEN's variance filter (2504.20073, 2604.06268)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gagpo.base.options import Options
from gagpo.credit.statistics.groups import group_std, varies
from gagpo.data import Turns

SLACK = 0.01
"""RAGEN-2: the spread of the kept groups may be this much below ``share`` of the total."""


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
    """DAPO: a penalty on responses near the response limit, which rises linearly over the last ``buffer`` tokens.

    buffer: tokens, at most the response limit; None for a quarter of it.
    factor: the penalty at the limit and beyond.
    """

    buffer: int | None = Field(default=None, ge=1)
    factor: float = Field(default=1.0, gt=0)


def keep_episodes(turns: Turns, settings: DynamicSampling | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of task groups with different returns; all without settings."""
    if settings is None:
        return np.ones(turns.num_episodes, np.bool_)
    return np.asarray(varies(turns.return_E, turns.group_index_E, turns.num_groups)[turns.group_index_E])


def keep_varied(turns: Turns, settings: VarianceFilter | None) -> np.ndarray:
    """Which episodes to keep, bool[E]: those of the task groups with the largest deviation; all without settings.

    The first of equal groups is kept. Each environment keeps its own share, since their rewards are not comparable.
    """
    varied_E = np.ones(turns.num_episodes, np.bool_)
    if settings is None:
        return varied_E
    for mask_E, env_turns in turns.by_env():
        spread_G = group_std(env_turns.return_E, env_turns.group_index_E, env_turns.num_groups)
        order_G = np.argsort(-spread_G, kind="stable")
        if settings.by == "groups":
            count = max(int(settings.share * env_turns.num_groups), 1)
        else:
            before_G = np.append(0.0, np.cumsum(spread_G[order_G])[:-1])
            target = settings.share * spread_G.sum() - SLACK
            count = int(((before_G < target) & (spread_G[order_G] > 0)).sum())
        varied_E[mask_E] = np.isin(env_turns.group_index_E, order_G[:count])
    return varied_E


def shape_overlong(turns: Turns, settings: Overlong | None, limit: np.ndarray | int) -> Turns:
    """Add :func:`overlong_penalty` to the rewards; without settings, return the turns as they are.

    limit: of a response, in tokens, for all turns or one for each.
    """
    if settings is None:
        return turns
    penalty_N = overlong_penalty(turns.tokens_N, limit, settings.buffer, settings.factor)
    return turns.with_columns(reward_N=turns.reward_N + penalty_N)


def overlong_penalty(
    tokens_N: np.ndarray, limit: np.ndarray | int, buffer: int | None = None, factor: float = 1.0
) -> np.ndarray:
    """``-factor (tokens - (limit - buffer))/buffer``, clipped to [-factor, 0], float64[N] (arXiv 2503.14476, eq. 13).

    limit: of a response, in tokens, for all turns or one for each.
    buffer, factor: see :class:`Overlong`.

    >>> overlong_penalty(np.array([300, 448, 512, 600]), 512).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    buffer_N = np.maximum(np.asarray(limit) // 4, 1) if buffer is None else np.asarray(buffer)
    share_N = np.clip(-(np.asarray(tokens_N) - (limit - buffer_N)) / buffer_N, -1.0, 0.0)
    return np.asarray(factor * share_N + 0.0)
