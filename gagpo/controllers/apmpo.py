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
    """APMPO's exponent of the power mean and upper clip radius from the rewards of the batch (arXiv 2605.04066).

    exponent: ``exponential`` exp(-exponent_scale * mean), ``linear`` 1 - exponent_scale * mean, ``fixed`` (the
    aggregation's own). radius: ``tanh`` of mean/std, ``mean`` (of the mean alone), ``deviation`` (of 1/std alone),
    ``fixed`` (the gate's own). symmetric: the lower radius follows the upper. statistics: of the ``batch`` (the paper's
    text) or of each ``group`` (its pseudo-code). ddof: 0 for the population deviation (Algorithm 1, line 8), 1 for the
    sample's. An episode's reward is its success, 0 or 1.
    """

    exponent: Literal["exponential", "linear", "fixed"] = "exponential"
    exponent_scale: float = Field(default=0.8, ge=0, le=0.95)
    radius: Literal["tanh", "mean", "deviation", "fixed"] = "tanh"
    radius_low: float = Field(default=0.2, gt=0)
    radius_high: float = Field(default=0.4, gt=0)
    symmetric: bool = False
    statistics: Literal["batch", "group"] = "batch"
    ddof: Literal[0, 1] = 0

    @model_validator(mode="after")
    def _ordered(self) -> Apmpo:
        if self.radius_high < self.radius_low:
            raise InvalidArgument(f"radius_high {self.radius_high} is below radius_low {self.radius_low}")
        if self.symmetric and self.radius_high > 1:
            raise InvalidArgument(f"a symmetric radius is at most 1, a ratio of 0; radius_high is {self.radius_high}")
        return self


class ApmpoController:
    """Exponent of the power mean and radii of the clip for the updates on one batch.

    ``exponent_G`` and ``radius_G`` have one entry, or one per task group; None before the first batch, and where the
    settings keep the fixed values.
    """

    def __init__(self, settings: Apmpo):
        self.settings = settings
        self.exponent_G: list[float] | None = None
        self.radius_G: list[float] | None = None

    def observe_batch(self, turns: Turns) -> None:
        """Take the successes of the batch."""
        settings, reward_E = self.settings, turns.coded_return_E("success")
        group_E, groups = turns.group_index_E, turns.groups
        if settings.statistics == "batch":
            group_E, groups = np.zeros(turns.episodes, np.int64), 1
        mean_G = group_mean(reward_E, group_E, groups)
        std_G = group_std(reward_E, group_E, groups, settings.ddof)
        self.exponent_G = None if settings.exponent == "fixed" else apmpo_exponent(mean_G, settings).tolist()
        self.radius_G = None if settings.radius == "fixed" else apmpo_radius(mean_G, std_G, settings).tolist()

    def values(self) -> dict[str, float]:
        """Means over the task groups where those have their own."""
        found = {"apmpo_exponent": self.exponent_G, "apmpo_radius": self.radius_G}
        return {name: float(np.mean(value_G)) for name, value_G in found.items() if value_G}

    def state_dict(self) -> dict[str, Any]:
        return {"exponent_G": self.exponent_G, "radius_G": self.radius_G}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exponent_G, self.radius_G = state["exponent_G"], state["radius_G"]


def apmpo_exponent(mean: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Exponent p of the power mean from mean rewards in [0, 1]: from 1 (all failed) down to 1 - or exp(-) the scale."""
    if settings.exponent == "linear":
        return 1.0 - settings.exponent_scale * mean
    return np.exp(-settings.exponent_scale * mean)


def apmpo_radius(mean: np.ndarray, std: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Upper clip radius, ``low + (high - low) tanh(FSS)`` with ``FSS = mean/(std + 1e-6)`` or one of its ablations."""
    if settings.radius == "mean":
        signal = mean
    elif settings.radius == "deviation":
        signal = 1.0 / (std + 1e-6)
    else:
        signal = mean / (std + 1e-6)
    return np.asarray(settings.radius_low + (settings.radius_high - settings.radius_low) * np.tanh(signal))
