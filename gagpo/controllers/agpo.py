"""AGPO's adaptive sampling temperature and clip radius (arXiv 2605.20722)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options
from gagpo.credit.statistics.dispersion import Dispersion, Skewness, group_dispersion, group_skewness, vote_entropy
from gagpo.data import Turns

State = dict[str, Any]
"""State as plain JSON."""

SMALLEST_AVERAGE = 1e-8
"""A running average at or below it restarts, since deviations are divided by it."""


def _require_order(low_name: str, low: float, high_name: str, high: float) -> None:
    if high < low:
        raise InvalidArgument(f"{high_name} must be at least {low_name}, {low:g} (got {high:g})", key=high_name)


class AgpoTemperature(Options):
    """Sampling temperature ``clamp(T (1 + gain u_c), low, high)`` of a task; T is ``rollout.temperature``.

    ``u_c`` is the relative deviation of the task's uncertainty ``u`` from its running average, where
    ``u = dispersion sigma + votes VE + skewness |k3|``.

    gain: change of the temperature where u is twice its average.
    low, high: bounds.
    dispersion, votes, skewness: weights in u. The authors' code has 0 for the skewness, which the paper names.
    rate: of the running average of u.
    """

    gain: float = Field(default=0.15, ge=0)
    low: float = Field(default=0.5, gt=0)
    high: float = Field(default=1.5, gt=0)
    dispersion: float = Field(default=1.0, ge=0)
    votes: float = Field(default=1.0, ge=0)
    skewness: float = Field(default=0.0, ge=0)
    rate: float = Field(default=0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> AgpoTemperature:
        _require_order("low", self.low, "high", self.high)
        return self


class AgpoRadius(Options):
    """Symmetric clip radius of a task, see :func:`agpo_radius`.

    base: radius of a task without a probe.
    low, high: bounds.
    entropy_low, entropy_high: bounds of h, the policy's entropy on the task relative to its running average.
    votes: weight of the vote entropy, which widens the clip.
    dispersion, kl, skewness: weights of what narrows it. The authors' code has 0 for the skewness, which the paper
        names.
    entropy_rate, kl_rate: of the running averages.
    """

    base: float = Field(default=0.2, gt=0, le=1)
    low: float = Field(default=0.05, gt=0)
    high: float = Field(default=0.4, gt=0, le=1)
    entropy_low: float = Field(default=0.5, gt=0)
    entropy_high: float = Field(default=1.5, gt=0)
    votes: float = Field(default=0.1, ge=0)
    dispersion: float = Field(default=1.0, ge=0)
    kl: float = Field(default=0.5, ge=0)
    skewness: float = Field(default=0.0, ge=0)
    entropy_rate: float = Field(default=0.01, gt=0, le=1)
    kl_rate: float = Field(default=0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> AgpoRadius:
        _require_order("low", self.low, "high", self.high)
        _require_order("entropy_low", self.entropy_low, "entropy_high", self.entropy_high)
        return self


class Agpo(Options):
    """Each task's sampling temperature and clip radius, from probe episodes, entropy and KL (arXiv 2605.20722).

    probe: episodes per task of the probe, which are not trained on.
    dispersion: measure of sigma, the dispersion of the probe's successes, 0 or 1.
    skewness: form of k3, their bias-corrected skewness; unused while its weights are 0.
    temperature: None to sample at ``rollout.temperature``.
    radius: None for the gate's own.
    """

    probe: int = Field(default=8, ge=2)
    dispersion: Dispersion = "std"
    skewness: Skewness = "authors"
    temperature: AgpoTemperature | None = AgpoTemperature()
    radius: AgpoRadius | None = AgpoRadius()

    @property
    def uses_skewness(self) -> bool:
        """Whether a weight of the skewness is above 0."""
        return any(statistic is not None and statistic.skewness > 0 for statistic in (self.temperature, self.radius))

    @model_validator(mode="after")
    def _adapts(self) -> Agpo:
        if self.temperature is None and self.radius is None:
            raise InvalidArgument(
                "temperature and radius are both null, so nothing adapts",
                key="temperature",
                advice="set controllers.agpo=null",
            )
        return self


class ProbeStatistics(NamedTuple):
    """Statistics of one task's probe.

    deviation: ``u_c``, relative deviation of its uncertainty from the average; 0 without an adaptive temperature.
    votes: entropy of the votes, nats.
    skewness: ``|k3|``.
    """

    deviation: float
    dispersion: float
    votes: float
    skewness: float = 0.0


@dataclass
class AgpoState:
    """Running averages, None before their first value, and the statistics of the current iteration.

    by_task: of each probed task.
    entropy_share: entropy on each task of the batch, divided by the running average.
    tasks: the task of each group of the batch.
    """

    uncertainty: float | None = None
    entropy_reference: float | None = None
    kl: float = 0.0
    by_task: dict[str, ProbeStatistics] = field(default_factory=dict)
    entropy_share: dict[str, float] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)


class AgpoController:
    """Temperature and radius of each task, stored by the task's name."""

    def __init__(self, settings: Agpo) -> None:
        self.settings = settings
        self.state = AgpoState()

    def begin(self) -> None:
        """Forget the last iteration's tasks; the running averages stay."""
        state = self.state
        state.by_task = {}
        state.entropy_share = {}
        state.tasks = []

    def observe_probe(self, turns: Turns, tasks_G: Sequence[str]) -> None:
        """Observe a probe: episodes sampled at the base temperature on tasks of the coming batch.

        Votes are ``vote_E``, by default the successes.

        tasks_G: the task of each group, in increasing order of ``group_E``; groups of one task are merged.
        """
        settings = self.settings
        names = list(dict.fromkeys(tasks_G))
        group_E = np.array([names.index(task) for task in tasks_G])[turns.group_index_E]
        groups = len(names)
        reward_E = turns.episode_reward("success")
        vote_E = reward_E if turns.vote_E is None else turns.vote_E
        dispersion_G = group_dispersion(reward_E, group_E, groups, settings.dispersion)
        skewness_G = np.abs(group_skewness(reward_E, group_E, groups, settings.skewness))
        votes_G = vote_entropy(vote_E, group_E, groups)
        deviation_G = self._deviation(dispersion_G, skewness_G, votes_G)
        columns = [column.tolist() for column in (deviation_G, dispersion_G, votes_G, skewness_G)]
        numbers_G = zip(*columns, strict=True)
        self.state.by_task |= {task: ProbeStatistics(*numbers) for task, numbers in zip(names, numbers_G, strict=True)}

    def _deviation(self, dispersion_G: np.ndarray, skewness_G: np.ndarray, votes_G: np.ndarray) -> np.ndarray:
        """Each task's ``u_c`` from the running average, which is then updated with the mean over the tasks.

        Without an average above 1e-8, it is 0.
        """
        settings = self.settings.temperature
        average = self.state.uncertainty
        if settings is None:
            return np.zeros(len(dispersion_G))
        uncertainty_G = settings.dispersion * dispersion_G + settings.votes * votes_G + settings.skewness * skewness_G
        self.state.uncertainty = running_average(average, float(uncertainty_G.mean()), settings.rate)
        if average is None or average <= SMALLEST_AVERAGE:
            return np.zeros(len(dispersion_G))
        return np.asarray((uncertainty_G - average) / (average + 1e-8))

    def observe_batch(self, tasks_G: Sequence[str], entropy_G: np.ndarray | None) -> None:
        """Observe the tasks of the batch's groups and the policy's entropy on each, nats.

        Each is compared with the running average, which is then updated with the mean over the groups. Without an
        adaptive radius, the entropy is not used.
        """
        settings = self.settings.radius
        state = self.state
        average = state.entropy_reference
        state.tasks = list(tasks_G)
        if settings is None:
            return
        entropy_G = np.asarray([] if entropy_G is None else entropy_G, np.float64)
        if entropy_G.shape != (len(tasks_G),) or not np.isfinite(entropy_G).all() or (entropy_G < 0).any():
            raise InvalidArgument(
                (
                    f"AGPO's clip radius needs the policy's mean token entropy on each of {len(tasks_G)} task "
                    f"groups, got {entropy_G.tolist()}"
                ),
                key="entropy_G",
            )
        share_G = np.ones(len(entropy_G))
        if average is not None and average > SMALLEST_AVERAGE:
            share_G = entropy_G / average
        task_array = np.array(tasks_G, np.object_)
        state.entropy_share = {task: float(share_G[task_array == task].mean()) for task in dict.fromkeys(tasks_G)}
        state.entropy_reference = running_average(average, float(entropy_G.mean()), settings.entropy_rate)

    def observe_update(self, approx_kl: float) -> None:
        """Observe the mean of old less new log-probability after all updates of an iteration."""
        if self.settings.radius is not None:
            rate = self.settings.radius.kl_rate
            self.state.kl = (1.0 - rate) * self.state.kl + rate * max(0.0, approx_kl)

    def temperature(self, base: float, task: str) -> float:
        """Sampling temperature of a task; the base for a task without a probe."""
        settings, statistics = self.settings.temperature, self.state.by_task.get(task)
        if settings is None or statistics is None:
            return base
        return float(np.clip(base * (1.0 + settings.gain * statistics.deviation), settings.low, settings.high))

    def radius(self, task: str) -> float:
        """:func:`agpo_radius` of a task; the base radius for a task without a probe.

        Raises:
            InvalidArgument: the radius is not adaptive.
        """
        settings, statistics = self.settings.radius, self.state.by_task.get(task)
        if settings is None:
            raise InvalidArgument(
                "controllers.agpo.radius is null: the clip radius is the gate's", key="controllers.agpo.radius"
            )
        if statistics is None:
            return settings.base
        return agpo_radius(statistics, self.state.entropy_share.get(task, 1.0), self.state.kl, settings)

    def values(self) -> dict[str, float]:
        """Metrics, means over the probed tasks."""
        settings, state = self.settings, self.state
        values = {} if settings.radius is None else {"agpo_kl": state.kl}
        probes = list(state.by_task.values())
        if probes and settings.radius is not None:
            values["agpo_radius"] = float(np.mean([self.radius(task) for task in state.by_task]))
        if probes and settings.temperature is not None:
            values["agpo_temperature"] = float(np.mean([self.temperature(1.0, task) for task in state.by_task]))
        if probes:
            values["agpo_dispersion"] = float(np.mean([probe.dispersion for probe in probes]))
            values["agpo_vote_entropy"] = float(np.mean([probe.votes for probe in probes]))
        if probes and settings.uses_skewness:
            values["agpo_skewness"] = float(np.mean([probe.skewness for probe in probes]))
        if state.entropy_share:
            values["agpo_entropy_share"] = float(np.mean(list(state.entropy_share.values())))
        return values

    def state_dict(self) -> State:
        return asdict(self.state)

    def load_state_dict(self, state: State) -> None:
        by_task = {task: ProbeStatistics(*numbers) for task, numbers in state["by_task"].items()}
        self.state = AgpoState(**{**state, "by_task": by_task})


def agpo_radius(probe: ProbeStatistics, entropy_share: float, kl: float, settings: AgpoRadius) -> float:
    """AGPO's symmetric clip radius, with ``h = clamp(entropy_share, entropy_low, entropy_high)``:

    ``clamp(base h (1 + votes VE)/(1 + dispersion sigma + kl KL + skewness |k3|), low, high)`` (arXiv 2605.20722)
    """
    h = np.clip(entropy_share, settings.entropy_low, settings.entropy_high)
    damping = 1.0 + settings.dispersion * probe.dispersion + settings.kl * kl + settings.skewness * probe.skewness
    radius = settings.base * h * (1.0 + settings.votes * probe.votes) / damping
    return float(np.clip(radius, settings.low, settings.high))


def running_average(average: float | None, value: float, rate: float) -> float:
    """Exponential moving average; the first value starts it, or restarts it from 1e-8 or less."""
    return value if average is None or average <= SMALLEST_AVERAGE else (1.0 - rate) * average + rate * value
