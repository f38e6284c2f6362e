"""APMPO's adaptive exponent and clip radius (arXiv 2605.04066)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.data import Turns

MAX_LINEAR_SCALE = 0.95
"""Keeps the linear exponent of a batch without failures at 0.05."""

EPSILON = 1e-6
"""Added to the deviation in the denominator of the signal."""


class Apmpo(Options):
    """Power-mean exponent and upper clip radius from the mean and deviation of successes, 0 or 1 (arXiv 2605.04066).

    exponent: ``exponential`` is ``exp(-scale * mean)``, ``linear`` is ``1 - scale * mean``; with ``fixed`` the
        aggregation keeps its own, which need not be a power mean.
    scale: at least 0 (the paper's Table 9 goes to 1.0); at most 0.95 where the exponent is linear, which must stay
        above 0.
    radius: ``low + (high - low) tanh(x)`` with x the signal ``mean/(std + 1e-6)`` (``tanh``), ``mean`` alone or
        ``1/(std + 1e-6)`` (``deviation``); ``linear`` is ``low + (high - low) x`` with the first of these
        (Algorithm 1, line 18), which exceeds ``high`` where most episodes of a batch succeed; with ``fixed`` the gate
        keeps its own.
    low, high: bounds of the radius.
    symmetric: the lower clip radius is the upper one, which then may be 1 at most.
    per: mean and deviation of the ``batch`` (the paper's text) or of each task ``group`` (its pseudo-code).
    ddof: 0 for the population's deviation (Algorithm 1, line 8), 1 for the sample's.
    """

    exponent: Literal["exponential", "linear", "fixed"] = "exponential"
    scale: float = Field(default=0.8, ge=0)
    radius: Literal["tanh", "linear", "mean", "deviation", "fixed"] = "tanh"
    low: float = Field(default=0.2, gt=0)
    high: float = Field(default=0.4, gt=0)
    symmetric: bool = False
    per: Literal["batch", "group"] = "batch"
    ddof: Literal[0, 1] = 0

    @model_validator(mode="after")
    def _possible(self) -> Apmpo:
        if self.high < self.low:
            raise InvalidArgument(f"high must be at least low, {self.low:g} (got {self.high:g})", key="high")
        if self.exponent == "linear" and self.scale > MAX_LINEAR_SCALE:
            raise InvalidArgument(
                f"scale must be at most {MAX_LINEAR_SCALE} with exponent=linear (got {self.scale:g})",
                key="scale",
                advice="exponent=exponential takes any scale",
            )
        if self.exponent == self.radius == "fixed":
            raise InvalidArgument(
                "exponent and radius are both fixed, so nothing adapts",
                key="exponent",
                advice="set controllers.apmpo=null",
            )
        if self.symmetric and self.radius == "fixed":
            raise InvalidArgument(
                "symmetric requires an adaptive radius", key="symmetric", advice="set radius=tanh, mean or deviation"
            )
        if self.symmetric and self.radius == "linear":
            raise InvalidArgument(
                "symmetric requires a radius below 1, and a linear one has no bound", advice="set radius=tanh"
            )
        if self.symmetric and self.high > 1:
            raise InvalidArgument(
                f"high must be at most 1 with symmetric=true, a ratio of 0 (got {self.high:g})", key="high"
            )
        return self


class ApmpoController:
    """Exponents and radii for the updates on one batch.

    exponents, radii: one number, or one for each task group of the batch; None before the first batch, and where they
        are fixed.
    """

    def __init__(self, settings: Apmpo):
        self.settings = settings
        self.exponents: list[float] | None = None
        self.radii: list[float] | None = None

    def observe_batch(self, turns: Turns) -> None:
        """Observe the successes of the batch."""
        reward_E = turns.episode_reward("success")
        samples = [reward_E]
        if self.settings.per == "group":
            samples = [reward_E[turns.group_index_E == group] for group in range(turns.num_groups)]
        statistics = [mean_and_deviation(sample, self.settings.ddof) for sample in samples]
        if self.settings.exponent != "fixed":
            self.exponents = [apmpo_exponent(mean, self.settings) for mean, _ in statistics]
        if self.settings.radius != "fixed":
            self.radii = [apmpo_radius(mean, deviation, self.settings) for mean, deviation in statistics]

    def values(self) -> dict[str, float]:
        """Metrics, means over the task groups where these differ."""
        columns = {"apmpo_exponent": self.exponents, "apmpo_radius": self.radii}
        return {name: float(np.mean(numbers)) for name, numbers in columns.items() if numbers}

    def state_dict(self) -> dict[str, Any]:
        return {"exponents": self.exponents, "radii": self.radii}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exponents = state["exponents"]
        self.radii = state["radii"]


def mean_and_deviation(value: np.ndarray, ddof: int) -> tuple[float, float]:
    """Mean and standard deviation; the deviation of fewer than two values is 0."""
    deviation = float(value.std(ddof=ddof)) if len(value) > 1 else 0.0
    return float(value.mean()), deviation


def apmpo_exponent(mean: float, settings: Apmpo) -> float:
    """Exponent of the power mean, 1 where all failed. mean: of rewards in [0, 1]."""
    if settings.exponent == "linear":
        return 1.0 - settings.scale * mean
    return math.exp(-settings.scale * mean)


def apmpo_radius(mean: float, deviation: float, settings: Apmpo) -> float:
    """Upper clip radius, within ``low`` and ``high`` unless it is linear; see :class:`Apmpo`."""
    signal = mean / (deviation + EPSILON)
    if settings.radius == "linear":
        return settings.low + (settings.high - settings.low) * signal
    if settings.radius == "mean":
        signal = mean
    elif settings.radius == "deviation":
        signal = 1.0 / (deviation + EPSILON)
    return settings.low + (settings.high - settings.low) * math.tanh(signal)
