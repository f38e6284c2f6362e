"""APMPO's adaptive exponent and clip bound (arXiv 2605.04066)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import group_mean, group_std


class Apmpo(Options):
    """Power-mean exponent and upper clip radius from the batch's successes, 0 or 1 (arXiv 2605.04066).

    exponent: ``exponential`` exp(-exponent_scale * mean), or ``linear`` 1 - exponent_scale * mean.
    radius: ``tanh`` of mean/std, of the ``mean`` alone, or of 1/``deviation`` alone.
    symmetric: the lower radius follows the upper.
    statistics: of the ``batch`` (the paper's text) or of each ``group`` (its pseudo-code).
    ddof: 0 for the population deviation (Algorithm 1, line 8), 1 for the sample's.
    """

    exponent: Literal["exponential", "linear"] = "exponential"
    exponent_scale: float = Field(default=0.8, ge=0, le=0.95)
    radius: Literal["tanh", "mean", "deviation"] = "tanh"
    radius_low: float = Field(default=0.2, gt=0)
    radius_high: float = Field(default=0.4, gt=0)
    symmetric: bool = False
    statistics: Literal["batch", "group"] = "batch"
    ddof: Literal[0, 1] = 0

    @model_validator(mode="after")
    def _ordered(self) -> Apmpo:
        if self.radius_high < self.radius_low:
            raise InvalidArgument(
                f"radius_high must be at least {self.radius_low}, radius_low (got {self.radius_high})"
            )
        if self.symmetric and self.radius_high > 1:
            raise InvalidArgument(f"radius_high must be at most 1 with symmetric=true (got {self.radius_high})")
        return self


class ApmpoController:
    """Exponent and radius for the updates on one batch.

    exponent_G, radius_G: one entry, or one per task group; None before the first batch.
    """

    def __init__(self, settings: Apmpo):
        self.settings = settings
        self.exponent_G: list[float] | None = None
        self.radius_G: list[float] | None = None

    def observe_batch(self, turns: Turns) -> None:
        """Observe the successes of the batch."""
        settings, reward_E = self.settings, turns.coded_return_E("success")
        group_E, groups = turns.group_index_E, turns.groups
        if settings.statistics == "batch":
            group_E, groups = np.zeros(turns.episodes, np.int64), 1
        mean_G = group_mean(reward_E, group_E, groups)
        std_G = group_std(reward_E, group_E, groups, settings.ddof)
        self.exponent_G = apmpo_exponent(mean_G, settings).tolist()
        self.radius_G = apmpo_radius(mean_G, std_G, settings).tolist()

    def values(self) -> dict[str, float]:
        """Metrics, means over task groups."""
        found = {"apmpo_exponent": self.exponent_G, "apmpo_radius": self.radius_G}
        return {name: float(np.mean(value_G)) for name, value_G in found.items() if value_G}

    def state_dict(self) -> dict[str, Any]:
        return {"exponent_G": self.exponent_G, "radius_G": self.radius_G}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exponent_G, self.radius_G = state["exponent_G"], state["radius_G"]


def apmpo_exponent(mean: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Exponent p of the power mean from mean rewards in [0, 1]; 1 where all failed."""
    if settings.exponent == "linear":
        return 1.0 - settings.exponent_scale * mean
    return np.exp(-settings.exponent_scale * mean)


def apmpo_radius(mean: np.ndarray, std: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Upper clip radius ``low + (high - low) tanh(FSS)``, ``FSS = mean/(std + 1e-6)`` or an ablation."""
    signal = mean if settings.radius == "mean" else (1.0 if settings.radius == "deviation" else mean) / (std + 1e-6)
    return np.asarray(settings.radius_low + (settings.radius_high - settings.radius_low) * np.tanh(signal))
