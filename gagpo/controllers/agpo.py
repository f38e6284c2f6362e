"""Adaptive AGPO's sampling temperature and clip radius (arXiv 2605.20722)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gagpo.cells import Cell
from gagpo.credit.turns import Turns
from gagpo.credit.turns.dispersion import group_dispersion, group_skewness, vote_entropy
from gagpo.envs.errors import InvalidArgument


class Agpo(Cell):
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


@dataclass
class AgpoState:
    """Running averages (None before their first value) and the statistics of the last probe, per task group."""

    uncertainty: float | None = None
    entropy_reference: float | None = None
    entropy_share: float = 1.0
    kl: float = 0.0
    deviation_G: list[float] = field(default_factory=lambda: [0.0])
    dispersion_G: list[float] = field(default_factory=lambda: [0.0])
    skewness_G: list[float] = field(default_factory=lambda: [0.0])
    votes_G: list[float] = field(default_factory=lambda: [0.0])


class AgpoController:
    """Temperature and radius, per task group or one for the batch."""

    def __init__(self, settings: Agpo):
        self.settings = settings
        self.state = AgpoState()

    def observe_probe(self, turns: Turns) -> None:
        """Take a probe, rolled out at the base temperature on the tasks of the coming batch, for its statistics alone.

        Groups are taken in increasing order of ``group_E``, which must be that of the batch to come. Votes are the
        episodes' ``vote_E`` (extracted answers), or their success where that is not given.

        The uncertainty ``u`` of each group is compared with the running average of the iterations before; the average
        then takes in the mean of the groups. The first probe has nothing to compare with and leaves the temperature.
        """
        settings, state = self.settings, self.state
        reward_E, group_E, groups = turns.coded_return_E(settings.reward), turns.group_index_E, turns.groups
        vote_E = turns.coded_return_E("success") if turns.vote_E is None else turns.vote_E
        dispersion_G = group_dispersion(reward_E, group_E, groups, settings.dispersion)
        skewness_G = np.abs(group_skewness(reward_E, group_E, groups))
        votes_G = vote_entropy(vote_E, group_E, groups)
        if settings.per == "batch":
            dispersion_G, skewness_G, votes_G = dispersion_G.mean()[None], skewness_G.mean()[None], votes_G.mean()[None]
        uncertainty_G = (
            settings.dispersion_weight * dispersion_G
            + settings.entropy_weight * votes_G
            + settings.skewness_weight * skewness_G
        )
        usual = state.uncertainty
        deviation_G = np.zeros(len(uncertainty_G)) if usual is None else (uncertainty_G - usual) / (usual + 1e-8)
        state.uncertainty = running(usual, float(uncertainty_G.mean()), settings.uncertainty_rate)
        state.deviation_G = deviation_G.tolist()
        state.dispersion_G, state.skewness_G = dispersion_G.tolist(), skewness_G.tolist()
        state.votes_G = votes_G.tolist()

    def observe_entropy(self, entropy: float | None) -> None:
        """Take the sampling policy's mean token entropy over the batch, nats; compared with its average until now."""
        if entropy is None or not math.isfinite(entropy) or entropy < 0:
            raise InvalidArgument(f"AGPO's clip radius needs the sampling policy's mean token entropy, got {entropy}")
        reference = self.state.entropy_reference
        self.state.entropy_share = entropy / reference if reference else 1.0
        self.state.entropy_reference = running(reference, entropy, self.settings.entropy_rate)

    def observe_update(self, old_kl: float) -> None:
        """Take the mean of old less new log-probability after an update."""
        self.state.kl = running(self.state.kl, max(0.0, old_kl), self.settings.kl_rate)

    def temperature_G(self, base: float) -> np.ndarray:
        """``clamp(base (1 + gain u_c))``, one for each group of the last probe."""
        settings = self.settings
        raised_G = base * (1.0 + settings.temperature_gain * np.array(self.state.deviation_G))
        return np.clip(raised_G, settings.temperature_low, settings.temperature_high)

    def radius_G(self) -> np.ndarray:
        """The clip radius of each group of the last probe, by :func:`agpo_radius`."""
        state = self.state
        dispersion_G, skewness_G, votes_G = map(np.array, (state.dispersion_G, state.skewness_G, state.votes_G))
        return agpo_radius(dispersion_G, skewness_G, votes_G, state.entropy_share, state.kl, self.settings)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = AgpoState(**state)


def agpo_radius(
    dispersion: np.ndarray, skewness: np.ndarray, votes: np.ndarray, entropy_share: float, kl: float, settings: Agpo
) -> np.ndarray:
    """AGPO's symmetric clip radius from statistics of a probe (arXiv 2605.20722).

    ``clamp(radius h (1 + vote_gain VE)/(1 + dispersion_gain sigma + kl_gain KL + skewness_gain |k3|))`` with
    ``h = clamp(entropy_share)``, the policy's entropy over its running average.
    """
    h = np.clip(entropy_share, settings.entropy_low, settings.entropy_high)
    damping = 1.0 + settings.dispersion_gain * dispersion + settings.kl_gain * kl
    damping = damping + settings.skewness_gain * np.abs(skewness)
    radius = settings.radius * h * (1.0 + settings.vote_gain * votes) / damping
    return np.clip(radius, settings.radius_low, settings.radius_high)


def running(average: float | None, value: float, rate: float) -> float:
    """Exponential moving average; the first value starts it."""
    return value if average is None else (1.0 - rate) * average + rate * value
