"""The credits of the two algorithms named AGPO: adaptive (arXiv 2605.20722) and asymmetric (arXiv 2605.05826)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from gagpo.credit.registry import CreditSettings
from gagpo.credit.turns import Turns
from gagpo.credit.turns.dispersion import Dispersion, group_dispersion
from gagpo.credit.turns.grouping import centre, group_std

SMALLEST = 1e-8
"""Dispersions below it count as none."""


class AgpoAdaptive(CreditSettings):
    """``(R - mean)/max(dispersion, 1e-8)`` over the task group (arXiv 2605.20722).

    dispersion: ``std`` (sample), ``mad`` (median absolute deviation * 1.4826) or ``iqr`` (interquartile range / 1.349).
    Equal returns give 0. A robust dispersion is 0 as soon as most of a group agrees; dividing by 1e-8 would then give
    advantages of 1e8, so that such a group falls back to its standard deviation (our choice).
    """

    name: Literal["agpo_adaptive"] = "agpo_adaptive"
    dispersion: Dispersion = "std"

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E, group_E, groups = turns.return_E, turns.group_index_E, turns.groups
        spread_G = group_dispersion(return_E, group_E, groups, self.dispersion)
        spread_G = np.where(spread_G > SMALLEST, spread_G, group_std(return_E, group_E, groups))
        return np.asarray(
            (centre(return_E, group_E, groups) / np.maximum(spread_G, SMALLEST)[group_E])[turns.episode_N]
        )


class AgpoAsymmetric(CreditSettings):
    """``(R - mean)/sqrt(var + delta^2) + 1[R < 0] * bonus`` with R = +1 for a success, -1 otherwise (arXiv 2605.05826).

    ``var`` is the population variance of the task group. A group that failed wholly gives ``bonus``, one that succeeded
    wholly gives 0, a rare success weighs most. ``delta`` and ``bonus`` are not published; these reproduce the curves
    that the paper describes.
    """

    name: Literal["agpo_asymmetric"] = "agpo_asymmetric"
    delta: float = Field(default=1.0, gt=0)
    bonus: float = Field(default=-1.0, le=0)

    def advantage(self, turns: Turns) -> np.ndarray:
        return_E = 2.0 * turns.coded_return_E("success") - 1.0
        group_E, groups = turns.group_index_E, turns.groups
        scale_E = np.sqrt(group_std(return_E, group_E, groups, ddof=0) ** 2 + self.delta**2)[group_E]
        penalty_E = np.where(return_E < 0, self.bonus, 0.0)
        return np.asarray((centre(return_E, group_E, groups) / scale_E + penalty_E)[turns.episode_N])
