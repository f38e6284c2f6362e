"""Which controllers an algorithm has, and their options."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gagpo.envs.errors import InvalidArgument


class ControllerCell(BaseModel):
    """Settings of one controller."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Apmpo(ControllerCell):
    """APMPO's exponent of the power mean and upper clip radius from the rewards of the batch (arXiv 2605.04066).

    exponent: ``exponential`` exp(-exponent_scale * mean), ``linear`` 1 - exponent_scale * mean, ``fixed`` (the
    aggregation's own). radius: ``tanh`` of mean/std, ``mean`` (of the mean alone), ``deviation`` (of 1/std alone),
    ``fixed`` (the gate's own). symmetric: the lower radius follows the upper. statistics: of the ``batch`` (the paper's
    text) or of each ``group`` (its pseudo-code). reward: ``success`` as 0/1, or the ``sum``, which must lie in [0, 1].
    """

    exponent: Literal["exponential", "linear", "fixed"] = "exponential"
    exponent_scale: float = Field(default=0.8, ge=0, le=0.95)
    radius: Literal["tanh", "mean", "deviation", "fixed"] = "tanh"
    radius_low: float = Field(default=0.2, gt=0)
    radius_high: float = Field(default=0.4, gt=0)
    symmetric: bool = False
    statistics: Literal["batch", "group"] = "batch"
    reward: Literal["sum", "success"] = "success"

    @model_validator(mode="after")
    def _ordered(self) -> Apmpo:
        if self.radius_high < self.radius_low:
            raise InvalidArgument(f"radius_high {self.radius_high} is below radius_low {self.radius_low}")
        if self.symmetric and self.radius_high > 1:
            raise InvalidArgument(f"a symmetric radius is at most 1, a ratio of 0; radius_high is {self.radius_high}")
        return self


class Agpo(ControllerCell):
    """AGPO's sampling temperature and clip radius from probe rollouts, entropy and KL (arXiv 2605.20722).

    probe: episodes per task of the probe. per: each task ``group`` its own temperature and radius, or one for the
    ``batch`` (means of the groups' statistics). reward: the probe's dispersion is of ``success`` 0/1 or of the ``sum``.
    """

    probe: int = Field(default=8, ge=2)
    per: Literal["group", "batch"] = "group"
    reward: Literal["sum", "success"] = "success"
    dispersion: Literal["std", "mad", "iqr"] = "std"
    dispersion_weight: float = Field(default=1.0, ge=0)
    entropy_weight: float = Field(default=1.0, ge=0)
    skewness_weight: float = Field(default=0.0, ge=0)
    temperature_gain: float = Field(default=0.15, ge=0)
    temperature_low: float = Field(default=0.5, gt=0)
    temperature_high: float = Field(default=1.5, gt=0)
    uncertainty_rate: float = Field(default=0.1, gt=0, le=1)
    radius: float = Field(default=0.2, gt=0)
    radius_low: float = Field(default=0.05, gt=0)
    radius_high: float = Field(default=0.4, gt=0, le=1)
    entropy_low: float = Field(default=0.5, gt=0)
    entropy_high: float = Field(default=1.5, gt=0)
    entropy_rate: float = Field(default=0.01, gt=0, le=1)
    kl_rate: float = Field(default=0.1, gt=0, le=1)
    vote_gain: float = Field(default=0.1, ge=0)
    dispersion_gain: float = Field(default=1.0, ge=0)
    kl_gain: float = Field(default=0.5, ge=0)
    skewness_gain: float = Field(default=0.0, ge=0)


class DynamicSampling(ControllerCell):
    """DAPO: drop groups whose episodes all came out alike, sample on until the batch is full (arXiv 2503.14476)."""

    rounds: int = Field(default=10, ge=1)
    reward: Literal["sum", "success"] = "sum"


class Overlong(ControllerCell):
    """DAPO: a response longer than ``limit - buffer`` tokens costs reward, linearly up to 1 at ``limit``."""

    limit: int = Field(default=512, ge=1)
    buffer: int = Field(default=128, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.buffer > self.limit:
            raise InvalidArgument(f"the buffer of {self.buffer} tokens is longer than the limit of {self.limit}")
        return self


class ControllerSettings(ControllerCell):
    """The controllers an algorithm has; None where it has not."""

    apmpo: Apmpo | None = None
    agpo: Agpo | None = None
    dynamic_sampling: DynamicSampling | None = None
    overlong: Overlong | None = None
